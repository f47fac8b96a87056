#include "ranks/node_shares.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace bottomless {

void NodeShares::FreeBuffer::operator()(std::byte* at) const {
  std::free(at);  // NOLINT: of aligned_alloc
}

NodeShares::NodeShares(Exchange& exchange, Engine& engine, Bytes piece_bytes)
    : exchange_(exchange), engine_(engine), piece_bytes_(piece_bytes) {}

Result<void> NodeShares::start() {
  const Bytes room = Engine::bypass_buffer_bytes(piece_bytes_);
  buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(Store::kAlignment, room)));
  if (!buffer_)
    return Error{Code::no_memory,
                 "keep shares within the node: no memory for a buffer of " + format_bytes(room)};
  Result<Thread> thread = Thread::start("bl-node", [this] { run(); });
  if (!thread.ok()) return std::move(thread).error();
  thread_ = std::move(thread).value();
  return {};
}

NodeShares::~NodeShares() {
  close();
  std::deque<std::unique_ptr<Kept>> all;
  {
    MutexLock lock(mutex_);  // not while the engine is called, which calls back with its own held
    all.swap(all_);
  }
  for (const auto& kept : all) {
    if (kept->part_ == nullptr) continue;
    exchange_.withdraw(kept->key_);
    engine_.free(kept->part_, nullptr);
  }
}

void NodeShares::close() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Result<NodeShares::Kept*> NodeShares::add(Exchange::Key key, std::vector<Share> shares) {
  std::unique_ptr<Kept> kept(new Kept(*this, key, std::move(shares)));
  const Bytes own = kept->shares_[static_cast<size_t>(exchange_.rank())].bytes();
  if (own > 0) {
    Result<void*> room = engine_.allocate(own, Kind::parameter, nullptr, "shares within the node");
    if (!room.ok()) return std::move(room).error();
    kept->part_ = static_cast<std::byte*>(room.value());
    exchange_.refuse_pulls(key);
  }
  MutexLock lock(mutex_);
  all_.push_back(std::move(kept));
  return all_.back().get();
}

std::optional<Error> NodeShares::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

bool NodeShares::Kept::complete(uint64_t version) const {
  MutexLock lock(all_.mutex_);
  return version_ == version &&
         bytes_ == shares_[static_cast<size_t>(all_.exchange_.rank())].bytes();
}

void NodeShares::Kept::gathered(uint64_t version, Bytes offset, Bytes bytes) {
  const Task task{.kept = this, .version = version, .offset = offset, .bytes = bytes};
  if (all_.part_of(task).bytes() == 0) return;
  MutexLock lock(all_.mutex_);
  all_.tasks_.push_back(task);
  all_.changed_.notify_all();
}

void NodeShares::Kept::invalidate() {
  {
    MutexLock lock(all_.mutex_);
    version_.reset();
    while (all_.busy_with_ == this) all_.changed_.wait(all_.mutex_);
    here_.clear();
    bytes_ = 0;
  }
  if (part_ != nullptr) all_.exchange_.refuse_pulls(key_);
}

void NodeShares::Kept::renew(uint64_t version, const std::byte* whole) {
  MutexLock lock(all_.mutex_);
  version_ = version;
  whole_ = whole;
}

// Where this rank's share and what was gathered meet.
Share NodeShares::part_of(const Task& task) const {
  const Share own = task.kept->shares_[static_cast<size_t>(exchange_.rank())];
  const Bytes begin = std::max(own.begin, task.offset);
  return {begin, std::max(begin, std::min(own.end, task.offset + task.bytes))};
}

// The next one that is still of use.
std::optional<NodeShares::Task> NodeShares::next_task() {
  while (!tasks_.empty()) {
    const Task task = tasks_.front();
    tasks_.pop_front();
    const Kept& kept = *task.kept;
    if (kept.version_ == task.version && !kept.here_.contains(task.offset)) return task;
  }
  return std::nullopt;
}

void NodeShares::run() {
  for (;;) {
    std::optional<Task> task;
    const std::byte* whole = nullptr;
    {
      MutexLock lock(mutex_);
      while (!closing_ && !(task = next_task())) changed_.wait(mutex_);
      if (closing_) return;
      busy_with_ = task->kept;
      whole = task->kept->whole_;
    }
    Result<bool> kept = keep(*task, whole);
    MutexLock lock(mutex_);
    if (!kept.ok()) {
      if (!failure_) failure_ = std::move(kept).error();
    } else if (kept.value() && task->kept->version_ == task->version) {
      note_kept(*task);
    }
    busy_with_ = nullptr;
    changed_.notify_all();
  }
}

// False: it has left again, or the program has written to it since. It may come once more.
Result<bool> NodeShares::keep(const Task& task, const std::byte* whole) {
  const Share part = part_of(task);
  const Bytes first = task.kept->shares_[static_cast<size_t>(exchange_.rank())].begin;
  for (Bytes at = part.begin; at < part.end;) {
    const Result<Bytes> copied = engine_.read_bypassing_heap(
        whole + at, std::min(piece_bytes_, part.end - at),
        {buffer_.get(), Engine::bypass_buffer_bytes(piece_bytes_)},
        Engine::Wanted::as_it_came);  // nobody may wait here for other ranks
    if (!copied.ok()) return false;
    std::byte* const into = task.kept->part_ + (at - first);
    Pins pins(engine_);
    const Need need{.address = into, .bytes = copied.value(), .access = Access::write};
    Result<void> pinned = engine_.pin_untraced(pins, {&need, 1}, "keep a share within the node");
    if (!pinned.ok()) return std::move(pinned).error();
    std::memcpy(into, buffer_.get(), copied.value());
    at += copied.value();
  }
  return true;
}

void NodeShares::note_kept(const Task& task) {
  Kept& kept = *task.kept;
  const Share own = kept.shares_[static_cast<size_t>(exchange_.rank())];
  kept.here_.insert(task.offset);
  kept.bytes_ += part_of(task).bytes();
  if (kept.bytes_ < own.bytes()) return;
  exchange_.offer(
      kept.key_, task.version,
      {.engine = &engine_, .address = kept.part_, .first = own.begin, .bytes = own.bytes()});
}

}  // namespace bottomless
