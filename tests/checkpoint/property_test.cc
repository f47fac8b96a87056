// Any tensors, saved by any number of ranks in pieces of any size and order, come back; whatever random bytes do to the
// files, what loads is what was saved.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/verify.h"
#include "state.h"
#include "support/simulated_files.h"

namespace bottomless {
namespace {

struct Piece {
  const StateTensor* tensor;
  Bytes offset, bytes;
};

// Writes all of it in pieces of random length and order.
Result<FileEntry> save_shuffled(Files& files, const State& state, Random& random) {
  std::vector<TensorSpec> specs;
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : state.tensors) {
    specs.push_back(tensor.spec);
    for (Bytes at = 0; at < tensor.bytes.size();) {
      const Bytes bytes = std::min<Bytes>(random.between(1, 400), tensor.bytes.size() - at);
      pieces.push_back({&tensor, at, bytes});
      at += bytes;
    }
  }
  // From hardly at all to thoroughly.
  for (uint64_t swaps = random.below(2 * pieces.size() + 1); swaps > 0; --swaps) {
    std::swap(random.pick(pieces), random.pick(pieces));
  }
  auto writer = create_shard(files, "/run", state.step, 0, specs);
  if (!writer.ok()) return writer.error();
  for (const Piece& piece : pieces) {
    const auto bytes = std::span(piece.tensor->bytes).subspan(piece.offset, piece.bytes);
    const Result<void> written =
        writer.value()->write(piece.tensor->spec.name, piece.offset, bytes);
    if (!written.ok()) return written.error();
  }
  return writer.value()->finish();
}

TEST(CheckpointProperty, WhatIsSavedIsLoaded) {
  Random random(51);
  BOTTOMLESS_TRACE_SEED(random);
  SimulatedFiles files;
  for (uint64_t round = 1; round <= 60; ++round) {
    const State state = random_state(round, random.below(12), random.between(1, 3000), random);
    if (random.one_in(2)) files.faults = {FileFault::short_transfer, random.below(100)};
    if (random.one_in(2)) {
      const Result<FileEntry> entry = save_shuffled(files, state, random);
      ASSERT_TRUE(entry.ok()) << entry.error().message;
      ASSERT_TRUE(commit(files, "/run", {round, {entry.value()}, "{}"}).ok());
    } else {
      ASSERT_TRUE(save(files, "/run", state, static_cast<uint32_t>(random.between(1, 9))).ok());
    }
    const Result<State> loaded = load(files, "/run");
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    ASSERT_EQ(loaded.value(), state);
    files.faults = {};
  }
}

TEST(CheckpointProperty, DamageIsFoundWhereverItIs) {
  Random random(52);
  BOTTOMLESS_TRACE_SEED(random);
  for (int round = 0; round < 300; ++round) {
    SimulatedFiles files;
    const State state = random_state(1, random.between(1, 5), 200, random);
    ASSERT_TRUE(save(files, "/run", state, 2).ok());
    std::vector<std::string> names = files.list("/run").value();
    const auto path = std::filesystem::path("/run") / random.pick(names);
    const Bytes size = files.open(path).value()->size().value();
    if (random.one_in(4)) {
      files.truncate(path, random.below(size));
    } else {
      files.flip_bit(path, random.below(size));
    }
    const Result<State> loaded = load(files, "/run");
    if (!loaded.ok()) {
      EXPECT_TRUE(loaded.error().code == Code::corrupt || loaded.error().code == Code::unsupported)
          << loaded.error().message;
      continue;
    }
    // A bit of white space, or of the metadata in a shard's header.
    EXPECT_EQ(loaded.value(), state);
  }
}

}  // namespace
}  // namespace bottomless
