// Which operations hold pins and which of them wait for room: tells when nobody is left who could give any back.
// Thread-safety: none; the engine locks.
#pragma once

namespace bottomless {

class Contention {
 public:
  // How an operation waits for room.
  enum class Waiting {
    to_pin,       // it can still give back what it has just pinned, and try again
    to_allocate,  // it holds what it holds, but can fail
    to_access,    // a memory access inside operations, which hold what they hold until it is served
  };
  struct Waiter {
    Waiting waiting = Waiting::to_pin;
    unsigned holds =
        0;  // operations that hold pins and go on only when it has its room: itself, or those it is inside
  };

  void began_to_hold() { ++holders_; }
  void holds_no_more() { --holders_; }
  unsigned holders() const { return holders_; }

  // What somebody who finds no room is to do, with no transfer under way.
  enum class Verdict {
    wait,         // an operation that runs may give some back
    wake_others,  // and wait: they find out that they have to step back, or fail
    step_back,
    fail,
  };
  Verdict verdict(const Waiter& waiter) const {
    const unsigned others = holders_ - waiter.holds;
    if (others == stepped_back_) return Verdict::fail;
    if (others != stepped_back_ + pinning_ + allocating_ + accessing_) return Verdict::wait;
    switch (waiter.waiting) {
      case Waiting::to_pin:
        return Verdict::step_back;
      case Waiting::to_allocate:
        return pinning_ == 0 ? Verdict::fail : Verdict::wake_others;
      case Waiting::to_access:
        break;
    }
    return pinning_ + allocating_ == 0 ? Verdict::fail : Verdict::wake_others;
  }

  void begin_wait(const Waiter& waiter) { count(waiter.waiting) += waiter.holds, ++short_of_room_; }
  void end_wait(const Waiter& waiter) { count(waiter.waiting) -= waiter.holds, --short_of_room_; }
  bool anybody_waits() const { return short_of_room_ > 0; }

  // Somebody has given back what it could, still holds `holds` and waits for others.
  void step_back(unsigned holds) { stepped_back_ += holds; }
  void step_forward(unsigned holds) { stepped_back_ -= holds; }

 private:
  unsigned& count(Waiting waiting) {
    return waiting == Waiting::to_pin        ? pinning_
           : waiting == Waiting::to_allocate ? allocating_
                                             : accessing_;
  }

  unsigned holders_ = 0;  // operations that hold a pin; below, how many of them wait
  unsigned pinning_ = 0;
  unsigned allocating_ = 0;
  unsigned accessing_ = 0;  // accesses with what they are inside
  unsigned stepped_back_ = 0;
  unsigned short_of_room_ = 0;
};

}  // namespace bottomless
