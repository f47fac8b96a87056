// Owns a file descriptor; -1 means none, tested here and nowhere else.
// Thread-safety: use one object from one thread at a time.
#pragma once
#include <unistd.h>

#include <utility>

namespace bottomless {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (valid()) ::close(fd_);
  }

  bool valid() const noexcept { return fd_ >= 0; }
  int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace bottomless
