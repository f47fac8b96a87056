// Traces for tests, made the way the engine makes them: by telling a recorder what a program does.
// Thread-safety: one thread at a time.
#pragma once
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "plan/trace_recorder.h"
#include "support/random.h"

namespace bottomless {

class TraceMaker {
 public:
  struct Storage : TracedStorage {};
  struct Use {
    Storage* storage;
    bool writes = false;
    bool fetches = true;
  };

  // One block each; made by the operation that began last.
  Storage* make(Bytes bytes, Kind kind = Kind::other);
  void free(Storage* storage);
  // The operation makes `made` and frees nothing by itself.
  void run(std::string_view name, const std::vector<Use>& uses, double seconds = 1);
  Storage* run_making(std::string_view name, const std::vector<Use>& uses, Bytes bytes,
                      double seconds = 1);
  Trace end_step() { return recorder_.end_step(); }

 private:
  TraceRecorder recorder_;
  std::vector<std::unique_ptr<Storage>> storages_;
};

// A step of a network of `layers`, with parameters of `parameter` bytes, activations of `activation` and Adam's two
// states, as it is once it repeats; deferred: updates run in the next forward pass.
struct Network {
  int layers = 12;
  Bytes parameter = 100;
  Bytes activation = 20;
  bool deferred = true;
  bool clipped = false;
  double forward = 1;
  double backward = 2;
  double update = 0.1;
};
Trace training_step(const Network& network);

// A few blocks, used and replaced at random, in a step that repeats.
Trace random_step(Random& random, size_t events, size_t blocks, Bytes most_bytes);

}  // namespace bottomless
