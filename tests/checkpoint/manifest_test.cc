#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/checksum.h"
#include "state.h"
#include "support/simulated_files.h"

namespace bottomless {
namespace {

using nlohmann::json;

TensorEntry entry(std::string name, Dtype dtype, std::vector<uint64_t> shape, uint64_t checksum) {
  return {spec_of(std::move(name), dtype, std::move(shape)), checksum};
}

Manifest example() {
  return {7,
          {{"a.safetensors",
            200,
            {entry("w", Dtype::bf16, {3, 4}, ~0ull), entry("ä\"", Dtype::i64, {}, 0)}},
           {"b.safetensors", 100, {entry("x", Dtype::f8_e4m3, {0}, 0x0123456789abcdefull)}}},
          R"({"big":18446744073709551615,"lr":0.1,"nested":{"betas":[0.9,0.999]}})"};
}

// Changes a manifest and seals it again, as somebody who knows the format could.
Result<Manifest> parse_changed(const std::function<void(json&)>& change) {
  json body = json::parse(to_json(example()).value());
  change(body);
  body.erase("xxh3");
  body["xxh3"] = hexadecimal(Checksum::of(body.dump()));
  return parse_manifest(body.dump(), "m");
}

void refused(const Result<Manifest>& manifest, Code code, std::string_view says) {
  ASSERT_FALSE(manifest.ok()) << says;
  EXPECT_EQ(manifest.error().code, code) << manifest.error().message;
  EXPECT_NE(manifest.error().message.find(says), std::string::npos)
      << manifest.error().message << "\nshould say: " << says;
}

TEST(Manifest, ComesBackAsItWas) {
  const Result<std::string> text = to_json(example());
  ASSERT_TRUE(text.ok()) << text.error().message;
  const Result<Manifest> read = parse_manifest(text.value(), "m");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), example());
}

TEST(Manifest, AnEntryTravelsAsText) {
  for (const FileEntry& file : example().files) {
    const Result<FileEntry> read = parse_file_entry(to_json(file).value());
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value(), file);
  }
  for (const char* wrong :
       {"", "{}", "[]", "1", R"({"name":"a","bytes":8,"tensors":{}})",
        R"({"name":"../a","bytes":8,"tensors":[]})", R"({"name":"a","bytes":-8,"tensors":[]})",
        R"({"name":"a","bytes":7,"tensors":[]})"}) {
    EXPECT_EQ(parse_file_entry(wrong).error().code, Code::corrupt) << wrong;
  }
}

TEST(Manifest, EveryFlippedBitIsFound) {
  const std::string text = to_json(example()).value();
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const Result<Manifest> read = parse_manifest(damaged, "m");
    // White space says nothing, so changed into other white space it still says the same.
    EXPECT_TRUE(!read.ok() || read.value() == example()) << damaged;
  }
}

TEST(Manifest, EveryCutIsFound) {
  const std::string text = to_json(example()).value();
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(parse_manifest(text.substr(0, length), "m").ok()) << length;
  }
}

TEST(Manifest, WhatContradictsItselfIsRefused) {
  using Change = std::function<void(json&)>;
  const std::vector<std::pair<Change, const char*>> cases = {
      {[](json& m) { m.erase("format"); }, "no manifest of a checkpoint"},
      {[](json& m) { m.erase("step"); }, "step"},
      {[](json& m) { m["step"] = -1; }, "the step is no whole number"},
      {[](json& m) { m["files"] = 1; }, "the files are no list"},
      {[](json& m) { m["extra"] = 1; }, "'extra' is no object"},
      {[](json& m) { m["files"][0]["name"] = "../b"; }, "not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = std::string("a\0b", 3); }, "not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = ".."; }, "not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = ""; }, "not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = "manifest.json"; }, "not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = "b.safetensors"; }, "stands twice"},
      {[](json& m) { m["files"][0]["bytes"] = 31; }, "exceed its size"},
      {[](json& m) { m["files"][0]["bytes"] = 39; }, "no room for a header"},
      {[](json& m) { m["files"][0]["bytes"] = 1.5; }, "has no size"},
      {[](json& m) { m["files"][1]["tensors"][0]["name"] = "w"; },
       "'w' stands in 'a.safetensors' and in 'b.safetensors'"},
      {[](json& m) { m["files"][0]["tensors"][0]["dtype"] = "F4"; }, "dtype that is not known"},
      {[](json& m) { m["files"][0]["tensors"][0]["xxh3"] = "0"; }, "checksum that is none"},
      {[](json& m) { m["files"][0]["tensors"][0]["shape"] = {-1}; }, "no proper shape"},
      {[](json& m) {
         m["files"][0]["tensors"][0]["shape"] = {{"a", 1}};
       },
       "no proper shape"},
      {[](json& m) { m["files"][0]["tensors"][0]["shape"] = 3; }, "no proper shape"},
      {[](json& m) {
         m["files"][0]["tensors"][0]["shape"] = {1ull << 63, 1ull << 63};
       },
       "exceed its size"},
  };
  ASSERT_TRUE(parse_changed([](json&) {}).ok());
  for (const auto& [change, says] : cases) refused(parse_changed(change), Code::corrupt, says);
}

TEST(Manifest, ALaterVersionIsNamed) {
  refused(parse_changed([](json& m) { m["version"] = 2; }), Code::unsupported, "version 2");
  refused(parse_manifest(R"({"format":"bottomless checkpoint","version":9})", "m"),
          Code::unsupported, "version 9");
}

TEST(Manifest, WhatCannotBeReadAgainIsNotWritten) {
  const auto refuse = [](const std::function<void(Manifest&)>& change, std::string_view says) {
    Manifest manifest = example();
    change(manifest);
    const Result<std::string> text = to_json(manifest);
    ASSERT_FALSE(text.ok()) << says;
    EXPECT_EQ(text.error().code, Code::invalid_argument);
    EXPECT_NE(text.error().message.find(says), std::string::npos) << text.error().message;
  };
  refuse([](Manifest& m) { m.extra = "[]"; }, "no JSON object");
  refuse([](Manifest& m) { m.extra = "{"; }, "parse error");
  refuse([](Manifest& m) { m.extra = R"({"a":1,"a":2})"; }, "'a' stands twice");
  refuse([](Manifest& m) { m.files[0].name = "a/b"; }, "not the name");
  refuse([](Manifest& m) { m.files[0].name = "a\xFF"; }, "UTF-8");
  refuse([](Manifest& m) { m.files[0].tensors[0].name = "x"; }, "'x' stands in");
}

TEST(Manifest, FilesThatAreMissingOrOfAnotherSizeAreNamed) {
  Random random(3);
  SimulatedFiles files;
  EXPECT_EQ(load_manifest(files, "/c").error().code, Code::not_found);
  ASSERT_TRUE(save(files, "/c", random_state(1, 9, 50, random)).ok());
  const Manifest manifest = load_manifest(files, "/c").value();
  const FileEntry& file = manifest.files[1];
  files.truncate(std::filesystem::path("/c") / file.name, file.bytes - 1);
  refused(load_manifest(files, "/c"), Code::corrupt, file.name);
  ASSERT_TRUE(files.remove(std::filesystem::path("/c") / file.name).ok());
  refused(load_manifest(files, "/c"), Code::corrupt, file.name);
}

TEST(Manifest, TheDirectoryOfAPathIsFoundHoweverItIsWritten) {
  for (const auto& [path, directory] :
       {std::pair{"a/b", "a"}, {"a/b/", "a"}, {"b", "."}, {"b/", "."}, {"/b", "/"}}) {
    EXPECT_EQ(directory_of(path), directory) << path;
  }
}

}  // namespace
}  // namespace bottomless
