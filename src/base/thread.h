// A named thread with a small stack that blocks all signals and is joined by its owner's
// destructor. Stacks count as private writable memory, so the default of 8 MiB a thread would be
// charged to the user's limit.
// Thread-safety: construct and destroy from one thread.
// Lifetime: what `body` refers to must outlive the Thread.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>
#include <pthread.h>

#include <functional>
#include <string>

namespace bottomless {

class Thread {
 public:
  // The deepest use seen is 48 KiB, of an 8-bit AdamW update on the thread that serves faults
  // (tests/python/test_stacks.py holds it to half).
  static constexpr Bytes kStackBytes = 256_KiB;

  Thread() = default;
  Thread(Thread&& other) noexcept;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();  // joins: tell the body to end first

  // `name` is cut to the 15 characters the kernel keeps.
  static Result<Thread> start(std::string name, std::function<void()> body);

  void join();

 private:
  pthread_t handle_{};
  bool joinable_ = false;
};

}  // namespace bottomless
