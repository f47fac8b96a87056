#include "train/ranks.h"

#include <ATen/ops/from_blob.h>
#include <bottomless/shard.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/started_rank.h"
#include "torch/errors.h"

namespace bottomless::train {

Result<Ranks> Ranks::join() {
  const Result<std::optional<StartedRank>> started = started_rank();
  if (!started.ok()) return started.error();
  Ranks ranks;
  if (!started.value() || started.value()->ranks == 1) return ranks;
  ranks.rank_ = started.value()->rank;
  ranks.count_ = started.value()->ranks;
  ranks.connection_ = connect();
  return ranks;
}

c10::intrusive_ptr<c10d::Backend> Ranks::connect() { return join_ranks(); }

// Equally many bytes from each. A sum in which every byte has one term that is not zero: done in place, in memory that is
// nobody's block.
std::vector<std::byte> Ranks::gather(std::span<const std::byte> own) {
  std::vector<std::byte> all(own.size() * static_cast<size_t>(count_));
  std::copy(own.begin(), own.end(),
            all.begin() + static_cast<std::ptrdiff_t>(own.size() * static_cast<size_t>(rank_)));
  if (connection_ == nullptr || own.empty()) return all;
  std::vector<at::Tensor> tensors{
      at::from_blob(all.data(), {static_cast<int64_t>(all.size())}, at::TensorOptions(at::kByte))};
  try {
    connection_->allreduce(tensors, {})->wait();
  } catch (const std::exception&) {  // Gloo says where in its sources, and not more
    throw_error({Code::io, "train on " + std::to_string(count_) + " ranks: rank " +
                               std::to_string(rank_) +
                               " has lost another one, which has ended; see what that one said"});
  }
  return all;
}

std::vector<double> Ranks::sum(const std::vector<double>& values) {
  const std::vector<std::byte> all = gather(std::as_bytes(std::span(values)));
  std::vector<double> sums(values.size(), 0);
  std::vector<double> theirs(values.size());
  const size_t bytes = values.size() * sizeof(double);
  for (size_t rank = 0; rank < static_cast<size_t>(count_); ++rank) {
    std::memcpy(theirs.data(), all.data() + rank * bytes, bytes);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += theirs[i];
  }
  return sums;
}

bool Ranks::any(bool here) { return sum({here ? 1.0 : 0.0}).front() > 0; }

std::vector<std::string> Ranks::all_say(const std::string& text) {
  const uint64_t own = text.size();
  const std::vector<std::byte> lengths = gather(std::as_bytes(std::span(&own, 1)));
  std::vector<uint64_t> sizes(static_cast<size_t>(count_));
  std::memcpy(sizes.data(), lengths.data(), lengths.size());
  std::string padded = text;
  padded.resize(*std::max_element(sizes.begin(), sizes.end()));
  const std::vector<std::byte> all = gather(std::as_bytes(std::span(padded)));
  std::vector<std::string> said;
  for (size_t rank = 0; rank < sizes.size(); ++rank)
    said.emplace_back(reinterpret_cast<const char*>(all.data()) + rank * padded.size(),
                      sizes[rank]);
  return said;
}

Result<void> Ranks::agree(const Result<void>& here) {
  if (!any(!here.ok())) return {};
  const std::vector<std::string> said = all_say(here.ok() ? "" : here.error().message);
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].empty()) continue;
    const Code code = here.ok() ? Code::io : here.error().code;
    return Error{code, rank == 0 ? said[rank] : "rank " + std::to_string(rank) + ": " + said[rank]};
  }
  return here;
}

}  // namespace bottomless::train
