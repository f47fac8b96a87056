#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoint/checksum.h"
#include "state.h"

namespace bottomless {
namespace {

std::array<std::byte, kLengthBytes> length_of(uint64_t length) {
  std::array<std::byte, kLengthBytes> start{};
  for (size_t i = 0; i < start.size(); ++i) start[i] = static_cast<std::byte>(length >> 8 * i);
  return start;
}

Result<TensorLayout> parse(std::string_view header, Bytes data_bytes) {
  return parse_header(header, kLengthBytes + header.size() + data_bytes, "a.safetensors");
}

TEST(Safetensors, AHeaderIsReadWithItsTensorsInOrder) {
  const Result<TensorLayout> layout =
      parse(R"({"__metadata__":{"format":"pt"},)"
            R"("b":{"dtype":"F32","shape":[2,1],"data_offsets":[3,11]},)"
            R"("a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},)"
            R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[3,3]},)"
            R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[11,12]}}   )",
            12);
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  const auto& tensors = layout.value().tensors;
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[1].name, "none");
  EXPECT_EQ(tensors[1].bytes, 0u);
  EXPECT_EQ(tensors[2].name, "b");
  EXPECT_EQ(tensors[2].dtype, Dtype::f32);
  EXPECT_EQ(tensors[2].shape, (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(tensors[2].offset, layout.value().data_offset + 3);
  EXPECT_EQ(tensors[2].bytes, 8u);
  EXPECT_EQ(tensors[3].bytes, 1u);
  EXPECT_EQ(layout.value().metadata, (Metadata{{"format", "pt"}}));
}

TEST(Safetensors, AFileWithoutTensorsIsOne) {
  EXPECT_TRUE(parse("{}", 0).ok());
  EXPECT_FALSE(parse("{}", 1).ok());
}

TEST(Safetensors, WhatTheHeaderGetsWrongIsSaid) {
  struct Case {
    const char* header;
    Bytes data_bytes;
    const char* says;
  };
  const Case cases[] = {
      {"", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"{", 0, "parse error"},
      {"{}x", 0, "parse error"},
      {"{\"a\xFF\":{}}", 0, "UTF-8"},
      {R"({"a":1})", 0, "'a' is described by no object"},
      {R"({"a":{"shape":[],"data_offsets":[0,1]}})", 1, "'a' has no dtype"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "'a' has no shape"},
      {R"({"a":{"dtype":"U8","shape":[]}})", 1, "'a' has no data_offsets"},
      {R"({"a":{"dtype":3,"shape":[],"data_offsets":[0,1]}})", 1, "dtype that is no string"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "shape that is no list"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "shape that is no list"},
      {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "shape that is no list"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}})", 1,
       "shape that is no list"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, "not two whole numbers"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}})", 1, "not two whole numbers"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "lies at [1, 0)"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "the file has 1 bytes"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,18446744073709551615]}})", 2,
       "the file has 2 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}})", 7, "needs 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "needs 2^64 or more bytes"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "a gap after the header"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "'b' leaves a gap after tensor 'a': it begins at 2, not at 1"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "'b' overlaps tensor 'a'"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3, "its tensors end at byte"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "'a' stands twice"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is no object"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__ 'a' is no string"},
  };
  for (const Case& each : cases) {
    const Result<TensorLayout> layout = parse(each.header, each.data_bytes);
    ASSERT_FALSE(layout.ok()) << each.header;
    EXPECT_EQ(layout.error().code, Code::corrupt) << layout.error().message;
    EXPECT_NE(layout.error().message.find(each.says), std::string::npos)
        << layout.error().message << "\nshould say: " << each.says;
    EXPECT_NE(layout.error().message.find("'a.safetensors'"), std::string::npos);
  }
}

TEST(Safetensors, AnElementTypeOfTheFutureIsNamed) {
  const auto layout = parse(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.error().code, Code::unsupported);
  EXPECT_NE(layout.error().message.find("'F4'"), std::string::npos);
}

TEST(Safetensors, DeepNestingIsRefusedNotFollowed) {
  const std::string deep =
      R"({"a":)" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  const auto layout = parse(deep, 0);
  ASSERT_FALSE(layout.ok());
  EXPECT_NE(layout.error().message.find("nested deeper"), std::string::npos);
}

TEST(Safetensors, TheLengthOfAHeaderIsBoundedByTheFileAndTheFormat) {
  EXPECT_EQ(header_length(length_of(10), 18, "a").value(), 10u);
  for (const auto& [length, file] : {std::pair<uint64_t, Bytes>{11, 18},
                                     {0, 7},
                                     {kMostHeaderBytes + 1, 1_GiB},
                                     {~uint64_t{0}, 1_GiB},
                                     {~uint64_t{0}, ~uint64_t{0}}}) {
    const Result<Bytes> found = header_length(length_of(length), file, "a");
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code, Code::corrupt);
  }
  EXPECT_EQ(header_length(length_of(kMostHeaderBytes), 1_GiB, "a").value(), kMostHeaderBytes);
}

TEST(Safetensors, WhatIsMadeIsAlignedAndIsReadAgain) {
  const Result<NewHeader> made =
      make_header({spec_of("bytes", Dtype::u8, {3}), spec_of("halves", Dtype::bf16, {5}),
                   spec_of("\"ä\n", Dtype::f64, {}), spec_of("none", Dtype::f64, {0})},
                  {{"format", "pt"}}, "a.safetensors");
  ASSERT_TRUE(made.ok()) << made.error().message;
  const TensorLayout& layout = made.value().layout;
  EXPECT_EQ(layout.data_offset % 8, 0u);
  EXPECT_EQ(layout.data_offset, made.value().start.size());
  EXPECT_EQ(layout.file_bytes, layout.data_offset + 8 + 10 + 3);
  for (const PlacedTensor& tensor : layout.tensors) {
    EXPECT_EQ(tensor.offset % bytes_of(tensor.dtype), 0u) << tensor.name;
  }
  const Result<TensorLayout> read = parse_header(
      std::string_view(made.value().start).substr(kLengthBytes), layout.file_bytes, "a");
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read.value().tensors.size(), 4u);
  EXPECT_EQ(read.value().metadata, layout.metadata);
  for (const PlacedTensor& tensor : layout.tensors) {
    EXPECT_NE(std::find(read.value().tensors.begin(), read.value().tensors.end(), tensor),
              read.value().tensors.end());
  }
}

TEST(Safetensors, WhatCannotBeMadeIsRefused) {
  const auto refused = [](std::vector<TensorSpec> tensors, std::string_view says) {
    const Result<NewHeader> made = make_header(std::move(tensors), {}, "a.safetensors");
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_EQ(made.error().code, Code::invalid_argument);
    EXPECT_NE(made.error().message.find(says), std::string::npos) << made.error().message;
  };
  refused({spec_of("a", Dtype::u8, {1}), spec_of("a", Dtype::u8, {1})}, "'a' is taken");
  refused({spec_of("__metadata__", Dtype::u8, {1})}, "'__metadata__' is taken");
  refused({spec_of("a", Dtype::u8, {uint64_t{1} << 62})}, "2^62");
  refused({spec_of("a", Dtype::f64, {uint64_t{1} << 61})}, "2^62");
  refused({spec_of("a\xFF", Dtype::u8, {1})}, "UTF-8");
}

TEST(Checksum, IsXxh3AndIndependentOfPieces) {
  EXPECT_EQ(hexadecimal(Checksum::of("")), "2d06800538d394c2") << "the published value";
  const std::string text(1000, 'x');
  Checksum pieces;
  pieces.add(std::as_bytes(std::span(text).first(1)));
  pieces.add(std::as_bytes(std::span(text).subspan(1)));
  EXPECT_EQ(pieces.value(), Checksum::of(text));
  EXPECT_EQ(parse_hexadecimal(hexadecimal(pieces.value())), pieces.value());
  for (const char* wrong :
       {"", "2d06800538d394c", "2d06800538d394c20", "2D06800538D394C2", " 2d06800538d394c"}) {
    EXPECT_EQ(parse_hexadecimal(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace bottomless
