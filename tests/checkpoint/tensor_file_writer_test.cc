#include "checkpoint/tensor_file_writer.h"

#include <gtest/gtest.h>

#include <thread>

#include "checkpoint/tensor_file_reader.h"
#include "state.h"
#include "support/simulated_files.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

std::vector<std::byte> pattern(size_t bytes, uint8_t first = 1) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(first + i * 7);
  return made;
}

uint64_t checksum_of(std::span<const std::byte> bytes) {
  return Checksum::of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

class TensorFileWriterTest : public testing::Test {
 protected:
  void create(std::vector<TensorSpec> tensors) {
    auto made = TensorFileWriter::create(files_, "/a", std::move(tensors));
    ASSERT_TRUE(made.ok()) << made.error().message;
    writer_ = std::move(made).value();
  }
  void refused(const Result<void>& written, Code code, std::string_view says) {
    ASSERT_FALSE(written.ok()) << says;
    EXPECT_EQ(written.error().code, code);
    EXPECT_NE(written.error().message.find(says), std::string::npos) << written.error().message;
    EXPECT_NE(written.error().message.find("'/a'"), std::string::npos) << written.error().message;
  }

  SimulatedFiles files_;
  std::unique_ptr<TensorFileWriter> writer_;
};

TEST_F(TensorFileWriterTest, InOrderNothingIsReadBack) {
  create({spec_of("w", Dtype::u8, {1000})});
  const auto bytes = pattern(1000);
  for (size_t at = 0; at < 1000; at += 100) {
    ASSERT_TRUE(writer_->write("w", at, std::span(bytes).subspan(at, 100)).ok());
  }
  const uint64_t before = files_.faults.requests;
  const Result<FileEntry> entry = writer_->finish();
  ASSERT_TRUE(entry.ok()) << entry.error().message;
  EXPECT_EQ(files_.faults.requests - before, 2u) << "the file is synced, and its directory";
  EXPECT_EQ(entry.value().tensors.at(0).checksum, checksum_of(bytes));
}

TEST_F(TensorFileWriterTest, InAnyOrderTheChecksumIsTheSame) {
  Random random(5);
  BOTTOMLESS_TRACE_SEED(random);
  const Bytes size = 2_MiB + 3;  // more than is read back at once
  create({spec_of("w", Dtype::u8, {size})});
  const auto bytes = pattern(size);
  std::vector<std::pair<Bytes, Bytes>> pieces;
  for (Bytes at = 0; at < size;) {
    const Bytes length = std::min<Bytes>(random.between(1, 300'000), size - at);
    pieces.emplace_back(at, length);
    at += length;
  }
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937_64(random.next()));
  for (const auto& [at, length] : pieces) {
    ASSERT_TRUE(writer_->write("w", at, std::span(bytes).subspan(at, length)).ok());
  }
  const Result<FileEntry> entry = writer_->finish();
  ASSERT_TRUE(entry.ok()) << entry.error().message;
  EXPECT_EQ(entry.value().tensors.at(0).checksum, checksum_of(bytes));
}

TEST_F(TensorFileWriterTest, WhatWasNotDeclaredOrDoesNotFitIsRefused) {
  create({spec_of("w", Dtype::f32, {2})});
  const auto bytes = pattern(9);
  const auto piece = [&](size_t length) { return std::span(bytes).first(length); };
  refused(writer_->write("v", 0, piece(1)), Code::invalid_argument, "'v'");
  refused(writer_->write("w", 0, piece(9)), Code::invalid_argument, "it has 8");
  refused(writer_->write("w", 8, piece(1)), Code::invalid_argument, "it has 8");
  refused(writer_->write("w", ~Bytes{0}, piece(2)), Code::invalid_argument, "it has 8");
  EXPECT_TRUE(writer_->write("w", 8, {}).ok());
  EXPECT_TRUE(writer_->write("w", 2, piece(4)).ok());
  for (const auto& [at, length] :
       {std::pair<Bytes, size_t>{2, 1}, {0, 3}, {5, 1}, {0, 8}, {3, 2}}) {
    refused(writer_->write("w", at, piece(length)), Code::invalid_argument, "each byte once");
  }
  EXPECT_TRUE(writer_->write("w", 6, piece(2)).ok());
  EXPECT_TRUE(writer_->write("w", 0, piece(2)).ok());
  EXPECT_TRUE(writer_->finish().ok());
}

TEST_F(TensorFileWriterTest, AMissingByteIsFoundAndTheFileRemoved) {
  create({spec_of("w", Dtype::u8, {10}), spec_of("none", Dtype::u8, {0})});
  const auto bytes = pattern(10);
  ASSERT_TRUE(writer_->write("w", 0, std::span(bytes).first(4)).ok());
  ASSERT_TRUE(writer_->write("w", 5, std::span(bytes).subspan(5)).ok());
  const Result<FileEntry> entry = writer_->finish();
  ASSERT_FALSE(entry.ok());
  refused(entry.error(), Code::invalid_argument, "byte 4 of 10 was never written");
  writer_.reset();
  EXPECT_EQ(files_.open("/a").error().code, Code::not_found);
}

TEST_F(TensorFileWriterTest, AfterAFailedWriteItCannotBeFinished) {
  create({spec_of("w", Dtype::u8, {10})});
  files_.faults = {FileFault::no_space, 0};
  EXPECT_EQ(writer_->write("w", 0, pattern(10)).error().code, Code::no_space);
  const Result<FileEntry> entry = writer_->finish();
  ASSERT_FALSE(entry.ok());
  refused(entry.error(), Code::io, "could not be written");
}

TEST_F(TensorFileWriterTest, AWriteThatMovesNothingIsAnErrorNotAHang) {
  create({spec_of("w", Dtype::u8, {10})});
  files_.faults = {FileFault::nothing_written, 0};
  refused(writer_->write("w", 0, pattern(10)), Code::io, "took nothing");
}

TEST_F(TensorFileWriterTest, AFileOfThatNameIsNeitherWrittenNorRemoved) {
  create({spec_of("w", Dtype::u8, {1})});
  ASSERT_TRUE(writer_->write("w", 0, pattern(1)).ok());
  ASSERT_TRUE(writer_->finish().ok());
  EXPECT_FALSE(TensorFileWriter::create(files_, "/a", {}).ok());
  EXPECT_TRUE(TensorFileReader::open(files_, "/a").ok());
}

TEST(TensorFileWriter, ManyThreadsWriteOneFile) {
  const TemporaryDirectory directory;
  const auto files = make_files();
  constexpr size_t kThreads = 4, kPiece = 1000, kPieces = 50;
  std::vector<TensorSpec> specs{spec_of("shared", Dtype::u8, {kThreads * kPieces * kPiece})};
  for (size_t i = 0; i < kThreads; ++i) {
    specs.push_back(spec_of("own " + std::to_string(i), Dtype::u8, {kPieces * kPiece}));
  }
  const auto path = directory.path() / "a.safetensors";
  const auto writer = TensorFileWriter::create(*files, path, specs).value();
  const auto shared = pattern(kThreads * kPieces * kPiece);
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto own = pattern(kPieces * kPiece, static_cast<uint8_t>(i));
      for (size_t piece = 0; piece < kPieces; ++piece) {
        const size_t at = (piece * kThreads + i) * kPiece;
        EXPECT_TRUE(writer->write("shared", at, std::span(shared).subspan(at, kPiece)).ok());
        const auto part = std::span(own).subspan(piece * kPiece, kPiece);
        EXPECT_TRUE(writer->write("own " + std::to_string(i), piece * kPiece, part).ok());
      }
    });
  }
  threads.clear();
  const Result<FileEntry> entry = writer->finish();
  ASSERT_TRUE(entry.ok()) << entry.error().message;

  const TensorFileReader reader = TensorFileReader::open(*files, path).value();
  EXPECT_EQ(reader.tensors().size(), kThreads + 1);
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (const TensorEntry& tensor : entry.value().tensors) {
        std::vector<std::byte> bytes(*bytes_of(tensor.dtype, tensor.shape));
        EXPECT_TRUE(reader.read(*reader.find(tensor.name), 0, bytes).ok());
        EXPECT_EQ(checksum_of(bytes), tensor.checksum);
        EXPECT_TRUE(tensor.name != "shared" || bytes == shared) << i;
      }
    });
  }
  threads.clear();  // before what they read from
}

}  // namespace
}  // namespace bottomless
