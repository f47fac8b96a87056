#include "io/throttled_store.h"

#include <algorithm>
#include <utility>

namespace bottomless {

Result<std::unique_ptr<Store>> ThrottledStore::over(std::unique_ptr<Store> below,
                                                    Bytes per_second) {
  std::unique_ptr<ThrottledStore> store(new ThrottledStore(std::move(below), per_second));
  ThrottledStore& made = *store;
  Result<Thread> thread = Thread::start("bl-throttle", [&made] { made.run(); });
  if (!thread.ok()) return std::move(thread).error();
  made.thread_ = std::move(thread).value();
  return std::unique_ptr<Store>(std::move(store));
}

ThrottledStore::~ThrottledStore() {
  end_below();  // everything under way has ended, and waits here
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

// One after the other, each as long as its bytes take.
ThrottledStore::Clock::time_point ThrottledStore::reserve(Bytes bytes) {
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / per_second_);
  MutexLock lock(mutex_);
  free_at_ = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(takes);
  return free_at_;
}

Store::Done ThrottledStore::delayed(Clock::time_point due, Done done) {
  return [this, due, done = std::move(done)](Result<void> outcome) {
    MutexLock lock(mutex_);
    ended_.push_back({due, std::move(outcome), done});
    changed_.notify_all();
  };
}

void ThrottledStore::read(const Extent& extent, Pieces into, Priority priority, Done done) {
  const Clock::time_point due = reserve(total(into));
  StoreOver::read(extent, std::move(into), priority, delayed(due, std::move(done)));
}

void ThrottledStore::write(const Extent& extent, Pieces from, Priority priority, Done done) {
  const Clock::time_point due = reserve(total(from));
  StoreOver::write(extent, std::move(from), priority, delayed(due, std::move(done)));
}

void ThrottledStore::run() {
  for (;;) {
    Ended next{};
    {
      MutexLock lock(mutex_);
      while (!closing_ && ended_.empty()) changed_.wait(mutex_);
      if (ended_.empty()) return;
      const auto first = std::min_element(ended_.begin(), ended_.end(),
                                          [](auto& a, auto& b) { return a.due < b.due; });
      const auto now = Clock::now();
      if (!closing_ && first->due > now) {
        changed_.wait_for(mutex_, first->due - now);
        continue;
      }
      next = std::move(*first);
      ended_.erase(first);
    }
    next.done(std::move(next.outcome));
  }
}

}  // namespace bottomless
