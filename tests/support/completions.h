// Collects the outcomes of asynchronous requests and waits for them.
// Thread-safety: all members from any thread. Lifetime: must outlive the requests.
#pragma once
#include <bottomless/result.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace bottomless {

class Completions {
 public:
  // A callback for one request; its outcome is found under the number it gets here, from 0.
  std::function<void(Result<void>)> expect() {
    std::lock_guard lock(mutex_);
    const size_t index = outcomes_.size();
    outcomes_.emplace_back();
    return [this, index](Result<void> outcome) {
      std::lock_guard inner(mutex_);
      ++calls_;
      outcomes_[index].push_back(std::move(outcome));
      changed_.notify_all();
    };
  }

  void wait_for_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return calls_ >= outcomes_.size(); });
  }

  // Of a request that completed exactly once; a second completion is an error of its own.
  Result<void> outcome(size_t index) const {
    std::lock_guard lock(mutex_);
    const auto& calls = outcomes_.at(index);
    if (calls.size() != 1) {
      return Error{Code::invalid_argument,
                   "completed " + std::to_string(calls.size()) + " times instead of once"};
    }
    return calls.front();
  }

  size_t expected() const {
    std::lock_guard lock(mutex_);
    return outcomes_.size();
  }
  bool each_completed_once() const {
    std::lock_guard lock(mutex_);
    for (const auto& calls : outcomes_) {
      if (calls.size() != 1) return false;
    }
    return true;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<Result<void>>> outcomes_;
  size_t calls_ = 0;
};

}  // namespace bottomless
