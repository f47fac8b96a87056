#include "checkpoint/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "state.h"
#include "support/simulated_files.h"

namespace bottomless {
namespace {

TEST(Verify, EveryFlippedBitOfEveryFileIsFound) {
  Random random(4);
  BOTTOMLESS_TRACE_SEED(random);
  SimulatedFiles files;
  ASSERT_TRUE(save(files, "/c", random_state(1, 7, 20, random)).ok());
  const Manifest manifest = load_manifest(files, "/c").value();
  ASSERT_TRUE(verify(files, "/c", manifest).ok());
  for (const FileEntry& file : manifest.files) {
    const auto path = std::filesystem::path("/c") / file.name;
    const TensorFileReader reader = TensorFileReader::open(files, path).value();
    for (const PlacedTensor& tensor : reader.tensors()) {
      for (Bytes at = tensor.offset; at < tensor.offset + tensor.bytes; ++at) {
        files.flip_bit(path, at);
        const Result<Verified> verified = verify(files, "/c", manifest);
        ASSERT_FALSE(verified.ok());
        EXPECT_EQ(verified.error().code, Code::corrupt);
        EXPECT_NE(verified.error().message.find("'" + tensor.name + "'"), std::string::npos)
            << verified.error().message;
        files.flip_bit(path, at);
      }
    }
  }
  EXPECT_TRUE(verify(files, "/c", manifest).ok());
}

TEST(Verify, AHeaderOfOtherTensorsIsFound) {
  Random random(4);
  SimulatedFiles files;
  ASSERT_TRUE(save(files, "/c", random_state(1, 7, 20, random)).ok());
  Manifest manifest = load_manifest(files, "/c").value();
  manifest.files[0].tensors[0].shape.push_back(1);
  EXPECT_EQ(verify(files, "/c", manifest).error().code, Code::corrupt);
  manifest.files[0].tensors.pop_back();
  EXPECT_EQ(verify(files, "/c", manifest).error().code, Code::corrupt);
}

TEST(Verify, NonfiniteValuesAreCountedIfAskedFor) {
  SimulatedFiles files;
  const auto add = [](State& state, const std::string& name, Dtype dtype, const auto& values) {
    StateTensor tensor{spec_of(name, dtype, {values.size()}), {}};
    const auto bytes = std::as_bytes(std::span(values));
    tensor.bytes.assign(bytes.begin(), bytes.end());
    state.tensors.emplace(name, tensor);
  };
  State state{1, {}};
  add(state, "good", Dtype::f32, std::vector<float>(1000, 1.5F));
  add(state, "bad", Dtype::f64, std::vector<double>{1, std::nan(""), HUGE_VAL});
  add(state, "whole", Dtype::i32, std::vector<int32_t>{-1, 0x7F800000});
  ASSERT_TRUE(save(files, "/c", state).ok());
  const Manifest manifest = load_manifest(files, "/c").value();
  EXPECT_TRUE(verify(files, "/c", manifest).value().nonfinite.empty());
  const Verified verified = verify(files, "/c", manifest, Nonfinite::count).value();
  EXPECT_EQ(verified.tensors, 3u);
  EXPECT_EQ(verified.bytes, 4000u + 24 + 8);
  ASSERT_EQ(verified.nonfinite.size(), 1u);
  EXPECT_EQ(verified.nonfinite[0].tensor, "bad");
  EXPECT_EQ(verified.nonfinite[0].elements, 2u);
}

TEST(Verify, EveryFailedRequestIsReported) {
  Random random(4);
  SimulatedFiles files;
  ASSERT_TRUE(save(files, "/c", random_state(1, 7, 20, random)).ok());
  for (uint64_t n = 0;; ++n) {
    ASSERT_LT(n, 1000u);
    files.faults = {FileFault::io_error, n};
    const Result<State> loaded = load(files, "/c");
    if (files.faults.fired == 0) break;
    ASSERT_FALSE(loaded.ok()) << "request " << n;
    EXPECT_EQ(loaded.error().code, Code::io);
  }
}

}  // namespace
}  // namespace bottomless
