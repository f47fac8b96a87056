#include "checkpoint/tensor_file_reader.h"

#include <gtest/gtest.h>

#include "checkpoint/tensor_file_writer.h"
#include "state.h"
#include "support/simulated_files.h"

namespace bottomless {
namespace {

class TensorFileReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto writer =
        TensorFileWriter::create(files_, "/a",
                                 {spec_of("w", Dtype::u8, {100}), spec_of("none", Dtype::f32, {0}),
                                  spec_of("x", Dtype::i16, {2})},
                                 {{"key", "value"}});
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    bytes_.resize(100);
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i);
    ASSERT_TRUE(writer.value()->write("w", 0, bytes_).ok());
    ASSERT_TRUE(writer.value()->write("x", 0, std::span(bytes_).first(4)).ok());
    ASSERT_TRUE(writer.value()->finish().ok());
  }
  SimulatedFiles files_;
  std::vector<std::byte> bytes_;
};

TEST_F(TensorFileReaderTest, ListsTensorsAndReadsAnyRange) {
  const auto reader = TensorFileReader::open(files_, "/a");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader.value().tensors().size(), 3u);
  EXPECT_EQ(reader.value().metadata().at("key"), "value");
  EXPECT_EQ(reader.value().find("y"), nullptr);
  const PlacedTensor& w = *reader.value().find("w");
  for (Bytes from = 0; from <= 100; from += 9) {
    for (Bytes length = 0; from + length <= 100; length += 13) {
      std::vector<std::byte> piece(length);
      ASSERT_TRUE(reader.value().read(w, from, piece).ok());
      EXPECT_TRUE(std::equal(piece.begin(), piece.end(), bytes_.begin() + static_cast<long>(from)));
    }
  }
}

TEST_F(TensorFileReaderTest, ARangeBeyondTheTensorIsRefused) {
  const auto reader = TensorFileReader::open(files_, "/a").value();
  std::array<std::byte, 2> two{};
  for (const Bytes offset : {Bytes{99}, Bytes{100}, Bytes{101}, ~Bytes{0}}) {
    const auto read = reader.read(*reader.find("w"), offset, two);
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, Code::invalid_argument);
    EXPECT_NE(read.error().message.find("'w' in '/a': it has 100"), std::string::npos);
  }
}

TEST_F(TensorFileReaderTest, ShortReadsAreResumed) {
  files_.faults = {FileFault::short_transfer, 0};
  const auto reader = TensorFileReader::open(files_, "/a");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::vector<std::byte> read(100);
  ASSERT_TRUE(reader.value().read(*reader.value().find("w"), 0, read).ok());
  EXPECT_EQ(read, bytes_);
}

TEST_F(TensorFileReaderTest, EveryFailedRequestIsReported) {
  for (uint64_t n = 0;; ++n) {
    ASSERT_LT(n, 100u);
    files_.faults = {FileFault::io_error, n};
    const auto reader = TensorFileReader::open(files_, "/a");
    if (files_.faults.fired == 0) break;
    ASSERT_FALSE(reader.ok());
    EXPECT_EQ(reader.error().code, Code::io);
  }
}

TEST_F(TensorFileReaderTest, AFileCutAtAnyByteIsCorrupt) {
  const Bytes size = files_.open("/a").value()->size().value();
  for (Bytes bytes = size; bytes-- > 0;) {
    files_.truncate("/a", bytes);
    const auto reader = TensorFileReader::open(files_, "/a");
    ASSERT_FALSE(reader.ok()) << bytes;
    EXPECT_EQ(reader.error().code, Code::corrupt) << reader.error().message;
  }
}

TEST_F(TensorFileReaderTest, AFileCutAfterItWasOpenedIsCorrupt) {
  const auto reader = TensorFileReader::open(files_, "/a").value();
  files_.truncate("/a", reader.file_bytes() - 1);
  const PlacedTensor& last = reader.tensors().back();
  std::vector<std::byte> bytes(last.bytes);
  EXPECT_EQ(reader.read(last, 0, bytes).error().code, Code::corrupt);
}

}  // namespace
}  // namespace bottomless
