// A mutex, a scoped lock and a condition variable that clang's thread-safety analysis
// understands.
// Thread-safety: that is what they are for.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define BOTTOMLESS_ANNOTATE(x) __attribute__((x))
#else
#define BOTTOMLESS_ANNOTATE(x)
#endif
#define BOTTOMLESS_GUARDED_BY(mutex) BOTTOMLESS_ANNOTATE(guarded_by(mutex))
#define BOTTOMLESS_REQUIRES(...) BOTTOMLESS_ANNOTATE(requires_capability(__VA_ARGS__))
#define BOTTOMLESS_NOT_ANALYSED BOTTOMLESS_ANNOTATE(no_thread_safety_analysis)
#define BOTTOMLESS_EXCLUDES(...) BOTTOMLESS_ANNOTATE(locks_excluded(__VA_ARGS__))

namespace bottomless {

class BOTTOMLESS_ANNOTATE(capability("mutex")) Mutex {
 public:
  void lock() BOTTOMLESS_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void unlock() BOTTOMLESS_ANNOTATE(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class BOTTOMLESS_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) BOTTOMLESS_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() BOTTOMLESS_ANNOTATE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // The caller holds `mutex` (through a MutexLock); it is released while waiting.
  void wait(Mutex& mutex) BOTTOMLESS_REQUIRES(mutex) { condition_.wait(mutex); }
  // At most for so long; may return earlier, as wait() may.
  void wait_for(Mutex& mutex, std::chrono::nanoseconds most) BOTTOMLESS_REQUIRES(mutex) {
    condition_.wait_for(mutex, most);
  }
  void notify_all() { condition_.notify_all(); }
  void notify_one() { condition_.notify_one(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace bottomless
