// What the engine knows of the future: records every step, keeps the shapes that recur with a schedule for
// each, and finds the running step in one of them. Says of a block when it is used next and whether
// it should leave until then, and which block is to be fetched now. Being wrong costs time, never data.
// Thread-safety: none; the engine locks. make() alone needs no lock: it takes up to seconds, and uses what nobody changes.
// Lifetime: storages are reported gone before they are.
#pragma once
#include <bottomless/bytes.h>

#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/block.h"
#include "plan/follower.h"
#include "plan/repetition.h"
#include "plan/schedule.h"
#include "plan/step_record.h"
#include "plan/trace_recorder.h"

namespace bottomless {

class Prefetcher {
 public:
  // Keeps its records to half of `most_bytes`; the rest is for making schedules.
  explicit Prefetcher(Bytes most_bytes);

  void born(Storage& storage);
  void died(Storage& storage);
  void gave_away(Storage& storage) { recorder_.gave_away(storage.traced); }
  void labelled(const Storage& storage) { recorder_.labelled(storage.traced); }

  // It will most likely be there, at the same address, in every step to come.
  bool is_lasting(const Storage& storage) const;

  // An operation asks for what it needs; `now` in seconds. With steps that nobody marks, one may end here. Then, after
  // what is wanted has been made, it begins.
  void asks(uint64_t signature, double now, Bytes capacity);
  void began(std::string_view who, uint64_t signature);
  void uses(Block& block, TraceUse how);
  void ready(double now);  // it has all of that

  // A step has ended; the next one is planned for `capacity`.
  void end_step(double now, Bytes capacity);

  // The schedule that should be made next, if any; make() does, and adopt() uses it, unless it is wanted no more. Until
  // then nothing is followed.
  struct Wanted {
    uint64_t id = 0;
    Bytes capacity = 0;
    std::shared_ptr<const Trace> trace;
  };
  struct Made {
    Schedule schedule;
    std::vector<uint32_t> after;  // successors(trace)
  };
  std::optional<Wanted> wanted() const;
  static Made make(const Wanted& wanted);
  void adopt(const Wanted& wanted, Made made);

  // The block that should be fetched next, if it is time; null: nothing to do.
  Block* due();
  void done_with_due() { due_.pop_front(); }

  uint64_t position() const { return base_ + follower_.position(); }
  uint64_t departures() const { return departures_; }
  bool following() const { return follower_.trace() != nullptr && !follower_.lost(); }
  uint64_t steps() const { return recorder_.step() - 1; }  // that have ended
  // Steps with more operations than there is memory to describe are not planned.
  uint64_t steps_too_long() const { return too_long_; }
  uint64_t schedules_made() const { return schedules_made_; }
  StepRecord last_step() const;  // its trace and schedule; empty if it was not recorded

 private:
  struct Shape {
    std::shared_ptr<Trace> trace = std::make_shared<Trace>();
    Schedule schedule;
    std::vector<uint32_t> after;  // successors(trace)
    Bytes capacity = 0;           // 0: there is no schedule yet
    uint64_t wanted = 0;          // the schedule that is on its way; 0: none is
    Bytes wanted_capacity = 0;    // of that
    uint64_t last_seen = 0;       // step
    uint64_t sizes = 0;           // of its blocks when it was last seen; a hash
    uint32_t same_sizes = 0;      // times in a row that they were these
    uint32_t smaller = 0;         // times that it was seen with less memory than `trace`
    Shape* followed_by = nullptr;
  };
  struct Due {
    uint32_t block;
    uint64_t needed;
  };

  void note_seen(Storage& storage);
  void bind(uint32_t index, Storage* storage);
  void follow(Shape* shape, const Shape* before);
  bool switch_shape();
  void finish_step(Bytes capacity);
  Shape* remember(Trace trace, Bytes capacity);
  static bool serves(Shape& shape, const Trace& trace);
  Shape* newest_with_schedule() const;
  void forget_oldest_but(const Shape* shape);
  void forget_too_many(const Shape* but);
  Shape* likely_next() const;
  void want_schedule(Shape& shape, Bytes capacity);
  void count_bytes();
  void collect_due(size_t event);
  Block* block_of(uint32_t block) const;

  const Bytes most_bytes_;
  TraceRecorder recorder_;
  Follower follower_;
  Repetition repetition_;
  bool marked_ = false;  // somebody says when a step ends
  std::vector<std::unique_ptr<Shape>> shapes_;
  Shape* shape_ = nullptr;  // that is being followed
  Shape* last_ = nullptr;   // of the step before
  uint32_t event_ = kNone;  // of shape_: the operation that began last
  size_t births_ = 0;       // of that operation so far
  size_t next_fetch_ = 0;
  std::deque<Due> due_;
  uint64_t base_ = 1;  // position at which the step began
  uint64_t binding_ = 0;
  std::vector<Storage*> bound_;  // like shape_->trace.storages; null: unknown or gone
  std::vector<Storage*> seen_;   // as the recorder counts them; null: gone
  std::unordered_map<uint64_t, Storage*> lasting_;  // those that have outlived a step, by serial
  std::unordered_map<uint64_t, Storage*> made_;     // in the step before, by the place where
  uint64_t wants_ = 0;
  Bytes shape_bytes_ = 0;
  uint64_t departures_ = 0;
  uint64_t too_long_ = 0;
  uint64_t schedules_made_ = 0;
  size_t unused_plans_ = 0;  // schedules of late for shapes that have not come again
  double ready_at_ = 0;
};

}  // namespace bottomless
