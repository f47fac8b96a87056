// Moves bytes between memory and files with a bounded number of transfers under way: io_uring
// where the kernel permits it, plain system calls elsewhere. The narrow interface to the
// operating system that tests replace to inject faults.
// Thread-safety: one thread owns the object and makes every call but wake(), which any thread
// may make.
// Lifetime: the memory and file of a transfer must live until its result has been returned.
#pragma once
#include <bottomless/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bottomless {

enum class Direction : uint8_t { read, write };

struct Transfer {
  Direction direction;
  int fd;
  uint64_t offset;
  std::span<std::byte> memory;
  uint64_t tag;  // comes back with the result
};

struct Moved {
  uint64_t tag;
  int64_t result;  // bytes moved, perhaps fewer than asked, or a negative errno
};

class Transfers {
 public:
  virtual ~Transfers() = default;  // nothing may be under way

  // The caller keeps at most depth() transfers under way.
  virtual void start(const Transfer& transfer) = 0;
  // Appends the results at hand; blocks until there is at least one, or wake() was called.
  virtual void wait(std::vector<Moved>& results) = 0;
  virtual void wake() = 0;
};

// `depth`: how many transfers may be under way at once.
Result<std::unique_ptr<Transfers>> make_uring_transfers(unsigned depth);

// Enough to keep a disk busy; each costs a stack.
inline constexpr unsigned kTransferThreads = 4;
Result<std::unique_ptr<Transfers>> make_threaded_transfers();

using MakeTransfers = std::function<Result<std::unique_ptr<Transfers>>()>;

struct ChosenTransfers {
  std::unique_ptr<Transfers> transfers;
  std::optional<std::string> fallback;  // why it is the threads, if it is
};
// What `preferred` makes, and threads where that is refused.
Result<ChosenTransfers> choose_transfers(const MakeTransfers& preferred);

}  // namespace bottomless
