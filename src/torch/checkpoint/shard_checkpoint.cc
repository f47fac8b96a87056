#include "torch/checkpoint/shard_checkpoint.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/commit.h"
#include "torch/errors.h"
#include "torch/intercept/managed.h"

namespace bottomless {
namespace {

// Slots behind the tensors': what ranks say to each other about a save.
constexpr size_t kMostTensors = (size_t{1} << 24) - 8;
constexpr size_t kHasRead = kMostTensors, kEntry = kMostTensors + 2, kOutcome = kMostTensors + 4;

at::Tensor bytes_tensor(const void* from, size_t bytes) {
  const BypassGuard guard;
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  if (bytes > 0) std::memcpy(tensor.data_ptr(), from, bytes);
  return tensor;
}

// The first line, without torch's stack of calls.
std::string words_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace

ShardedSave::ShardedSave(Sharding& sharding, std::filesystem::path directory, uint64_t step,
                         uint64_t number, Keep keep)
    : sharding_(sharding),
      directory_(std::move(directory)),
      step_(step),
      number_(number),
      keep_(keep),
      files_(make_files()) {}

ShardedSave::~ShardedSave() {
  thread_.join();
  for (size_t i = 0; i < added_.size(); ++i) {
    if (added_[i].own.defined()) sharding_.retract(number_of(i));
  }
  for (const Said& said : said_) sharding_.retract(said.number);
}

int64_t ShardedSave::number_of(size_t index) const {
  return static_cast<int64_t>(uint64_t{1} << 48 | number_ << 24 | index);
}

void ShardedSave::add(LogicalTensor tensor, const at::Tensor& own) {
  const Share share = tensor.shares[static_cast<size_t>(sharding_.rank())];
  if (added_.size() == kMostTensors || (share.bytes() > 0 && own.nbytes() != share.bytes())) {
    throw_error({Code::invalid_argument, "save '" + tensor.spec.name + "': this rank's share has " +
                                             std::to_string(own.nbytes()) + " bytes, wanted " +
                                             std::to_string(share.bytes())});
  }
  at::Tensor mine = share.bytes() > 0 ? own.detach() : at::Tensor();
  added_.push_back({std::move(tensor), mine});
  if (mine.defined()) sharding_.publish(number_of(added_.size() - 1), mine);
}

void ShardedSave::start(std::string extra) {
  extra_ = std::move(extra);
  std::vector<Bytes> sizes;
  for (const Added& added : added_) {
    Bytes bytes = 0;
    for (const Share& share : added.tensor.shares) bytes += share.bytes();
    sizes.push_back(bytes);
  }
  writers_ = owners_of(sizes, sharding_.ranks());
  check(sharding_.engine().charge(Thread::kStackBytes, nullptr, "save a checkpoint"));
  charged_ = Thread::kStackBytes;
  thread_ = checked(Thread::start("bl-save", [this] { run(); }));
  started_ = true;
}

void ShardedSave::wait_until_read() {
  MutexLock lock(mutex_);
  while (started_ && !read_) changed_.wait(mutex_);
}

bool ShardedSave::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

void ShardedSave::wait() {
  MutexLock lock(mutex_);
  while (started_ && !ended_) changed_.wait(mutex_);
  if (!failure_.empty())
    throw_error({Code::io, "save a checkpoint to " + directory_.string() + ": " + failure_});
}

void ShardedSave::run() {
  std::string failure;
  try {
    Result<void> written;
    try {
      written = write_shard();
    } catch (const std::exception& error) {
      written = Error{Code::io, words_of(error)};
    }
    wait_for_readers();
    failure = finish_together(std::move(written));
  } catch (const std::exception& error) {  // another rank has ended
    failure = words_of(error);
    writer_.reset();
  }
  try {
    wait_for_listeners();
  } catch (const std::exception&) {
    // A rank that has ended hears nothing, and whether the checkpoint is complete does not depend on it.
  }
  sharding_.engine().discharge(std::exchange(charged_, 0));
  MutexLock lock(mutex_);
  read_ = ended_ = true;
  failure_ = std::move(failure);
  changed_.notify_all();
}

Result<void> ShardedSave::write_shard() {
  std::vector<TensorSpec> mine;
  for (size_t i = 0; i < added_.size(); ++i) {
    if (writers_[i] == sharding_.rank()) mine.push_back(added_[i].tensor.spec);
  }
  Result<std::unique_ptr<TensorFileWriter>> writer = create_shard(
      *files_, directory_, step_, static_cast<uint32_t>(sharding_.rank()), std::move(mine));
  if (!writer.ok()) return std::move(writer).error();
  writer_ = std::move(writer).value();
  const at::Tensor buffer = checked(new_managed(sharding_.piece_bytes(), at::kByte, Kind::other));
  for (size_t i = 0; i < added_.size(); ++i) {
    if (writers_[i] == sharding_.rank()) write_tensor(i, buffer);
  }
  return {};
}

void ShardedSave::write_tensor(size_t index, const at::Tensor& buffer) {
  const LogicalTensor& tensor = added_[index].tensor;
  int64_t stride = 1;
  bool permuted = false;
  for (size_t d = tensor.spec.shape.size(); d-- > 0;) {
    const auto size = static_cast<int64_t>(tensor.spec.shape[d]);
    permuted = permuted || (size > 1 && tensor.strides[d] != stride);
    stride *= size;
  }
  if (permuted && stride > 0) {
    write_permuted(index);
    return;
  }
  for (size_t from = 0; from < tensor.shares.size(); ++from) {
    const Share share = tensor.shares[from];
    for (Bytes done = 0; done < share.bytes(); done += buffer.nbytes()) {
      const auto bytes =
          static_cast<int64_t>(std::min<Bytes>(buffer.nbytes(), share.bytes() - done));
      const at::Tensor piece = buffer.narrow(0, 0, bytes);
      sharding_.read(static_cast<int>(from), number_of(index), done, piece);
      write_piece(index, share.begin + done, piece);
    }
  }
}

// Its memory is in another order than the file: that takes the whole, twice, under the limit.
void ShardedSave::write_permuted(size_t index) {
  const LogicalTensor& tensor = added_[index].tensor;
  const auto element = static_cast<int64_t>(bytes_of(tensor.spec.dtype));
  const at::ScalarType type = element == 1   ? at::kByte
                              : element == 2 ? at::kShort
                              : element == 4 ? at::kInt
                                             : at::kLong;
  const Bytes bytes = *bytes_of(tensor.spec.dtype, tensor.spec.shape);
  const at::Tensor whole = checked(new_managed(bytes, type, Kind::other));
  for (size_t from = 0; from < tensor.shares.size(); ++from) {
    const Share share = tensor.shares[from];
    if (share.bytes() == 0) continue;
    const at::Tensor part = whole.narrow(0, static_cast<int64_t>(share.begin) / element,
                                         static_cast<int64_t>(share.bytes()) / element);
    sharding_.read(static_cast<int>(from), number_of(index), 0, part);
  }
  const std::vector<int64_t> shape(tensor.spec.shape.begin(), tensor.spec.shape.end());
  const at::Tensor rows = whole.as_strided(shape, tensor.strides).contiguous().view(-1);
  const auto piece_elements = static_cast<int64_t>(sharding_.piece_bytes()) / element;
  for (int64_t done = 0; done < rows.numel(); done += piece_elements) {
    write_piece(index, static_cast<Bytes>(done * element),
                rows.narrow(0, done, std::min(piece_elements, rows.numel() - done)));
  }
}

void ShardedSave::write_piece(size_t index, Bytes at, const at::Tensor& piece) {
  const std::string& name = added_[index].tensor.spec.name;
  const PinnedRange range =
      checked(pin_range(piece, 0, piece.nbytes(), Access::read, "save '" + name + "'"));
  check(writer_->write(name, at, {range.at, piece.nbytes()}));
}

// Each rank says when it has read all that it writes; when all have, what was lent to them is its owner's again.
void ShardedSave::wait_for_readers() {
  say(kHasRead, "", sharding_.ranks());
  for (int rank = 0; rank < sharding_.ranks(); ++rank) (void)hear(rank, kHasRead);
  for (size_t i = 0; i < added_.size(); ++i) {
    if (!added_[i].own.defined()) continue;
    sharding_.retract(number_of(i));
    added_[i].own = at::Tensor();
  }
  MutexLock lock(mutex_);
  read_ = true;
  changed_.notify_all();
}

// Why it failed, in the same words on all ranks; nothing when it is committed.
std::string ShardedSave::finish_together(Result<void> written) {
  std::string entry;
  if (written.ok()) {
    const Result<FileEntry> finished = writer_->finish();
    const Result<std::string> text =
        finished.ok() ? to_json(finished.value()) : Result<std::string>(finished.error());
    if (text.ok()) entry = text.value();
    if (!text.ok()) written = text.error();
  }
  if (!written.ok()) writer_.reset();
  const std::string rank = "rank " + std::to_string(sharding_.rank());
  say(kEntry, written.ok() ? entry : "!" + rank + ": " + written.error().message, 1);
  if (sharding_.rank() != 0) return hear(0, kOutcome);
  std::vector<std::string> entries;
  for (int rank = 0; rank < sharding_.ranks(); ++rank) entries.push_back(hear(rank, kEntry));
  const std::string outcome = commit_entries(entries);
  say(kOutcome, outcome, sharding_.ranks() - 1);
  return outcome;
}

std::string ShardedSave::commit_entries(const std::vector<std::string>& entries) {
  Manifest manifest{.step = step_, .extra = extra_};
  for (const std::string& entry : entries) {
    if (entry.starts_with('!')) return entry.substr(1);
    Result<FileEntry> file = parse_file_entry(entry);
    if (!file.ok()) return file.error().message;
    manifest.files.push_back(std::move(file).value());
  }
  const Result<Removed> committed = commit(*files_, directory_, manifest, keep_);
  return committed.ok() ? "" : committed.error().message;
}

void ShardedSave::say(size_t slot, const std::string& text, int readers) {
  const auto length = static_cast<uint64_t>(text.size());
  const auto publish = [&](size_t at, const void* from, size_t bytes) {
    const at::Tensor content = bytes_tensor(from, bytes);
    said_.push_back({number_of(at), content, bytes * static_cast<Bytes>(readers)});
    sharding_.publish(number_of(at), content);
  };
  if (!text.empty()) publish(slot + 1, text.data(), text.size());
  publish(slot, &length, sizeof length);
}

// What this rank has said must not go before all have heard it.
void ShardedSave::wait_for_listeners() {
  for (const Said& said : said_) sharding_.wait_until_given(said.number, said.wanted);
}

std::string ShardedSave::hear(int rank, size_t slot) {
  uint64_t length = 0;
  const at::Tensor number = bytes_tensor(&length, sizeof length);
  sharding_.read(rank, number_of(slot), 0, number);
  std::memcpy(&length, number.data_ptr(), sizeof length);
  std::string text(length, ' ');
  if (length == 0) return text;
  const at::Tensor bytes = bytes_tensor(text.data(), text.size());
  sharding_.read(rank, number_of(slot + 1), 0, bytes);
  const PinnedRange range = checked(pin_range(bytes, 0, length, Access::read, "save a checkpoint"));
  std::memcpy(text.data(), range.at, length);
  return text;
}

}  // namespace bottomless
