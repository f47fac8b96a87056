#include "train/setup/network_speed.h"

#include <ATen/ops/from_blob.h>
#include <bottomless/bytes.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "torch/errors.h"

namespace bottomless::train {
namespace {

constexpr Bytes kAtOnce = 1_MiB;  // outside of the limit, and only for a moment
constexpr int kRounds = 6;
constexpr int kTag = 0;

std::vector<at::Tensor> tensor_over(std::vector<std::byte>& bytes) {
  return {at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte)};
}

}  // namespace

double measure_network(Ranks& ranks) {
  if (ranks.count() == 1) return 0;
  const auto connection = ranks.connect();
  std::vector<std::byte> out(kAtOnce), in(kAtOnce);
  std::vector<at::Tensor> sent = tensor_over(out), received = tensor_over(in);
  const int next = (ranks.rank() + 1) % ranks.count();
  const int previous = (ranks.rank() + ranks.count() - 1) % ranks.count();
  double best = 0;
  try {
    for (int round = 0; round < kRounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      const auto sending = connection->send(sent, next, kTag);
      const auto receiving = connection->recv(received, previous, kTag);
      sending->wait(ranks.deadline());
      receiving->wait(ranks.deadline());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      // The first makes ready; of the others the best: whoever else uses the network can only make it slower.
      if (round > 0) best = std::max(best, static_cast<double>(kAtOnce) / took.count());
    }
  } catch (const std::exception& error) {
    const std::string why = error.what();
    throw_error({Code::io, "measure the network: rank " + std::to_string(ranks.rank()) +
                               " has nothing from rank " + std::to_string(previous) + ", or rank " +
                               std::to_string(next) + " takes nothing, for " +
                               std::to_string(ranks.deadline().count()) +
                               " s (--deadline): " + why.substr(0, why.find('\n'))});
  }
  // Who ends a connection while others read from it, may take their last bytes from them: all have theirs now.
  return ranks.sum({best}).front() / ranks.count();
}

}  // namespace bottomless::train
