// A shard is an ordinary safetensors file: Hugging Face's own library loads it, and we load what that library wrote.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "checkpoint/tensor_file_reader.h"
#include "state.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

using nlohmann::json;

class HuggingFace : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system((python() + " -c 'import safetensors.torch' 2>/dev/null").c_str()) != 0) {
      GTEST_SKIP() << "no safetensors and torch for " << python()
                   << "; BOTTOMLESS_PYTHON names another";
    }
  }
  static std::string python() {
    const char* chosen = std::getenv("BOTTOMLESS_PYTHON");
    return chosen == nullptr ? BOTTOMLESS_VENV_PYTHON : chosen;
  }
  // What the script prints, as JSON; it fails if the script does.
  static json run(const std::string& arguments) {
    const std::string command = python() + " -B " + BOTTOMLESS_SCRIPT + " " + arguments;
    FILE* pipe = ::popen(command.c_str(), "r");
    EXPECT_NE(pipe, nullptr);
    std::string text;
    char part[512];
    while (const size_t got = std::fread(part, 1, sizeof part, pipe)) text.append(part, got);
    EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << text;
    return json::parse(text, nullptr, false);
  }
  static std::string hex(std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte byte : bytes) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(byte));
      text += digits;
    }
    return text;
  }

  const TemporaryDirectory directory_;
  const std::unique_ptr<Files> files_ = make_files();
};

TEST_F(HuggingFace, LoadsOurShards) {
  Random random(61);
  BOTTOMLESS_TRACE_SEED(random);
  State state = random_state(1, 30, 100, random);
  for (size_t i = 0; i < kDtypes; ++i) {  // each for certain
    const auto dtype = static_cast<Dtype>(i);
    StateTensor tensor{spec_of("of " + std::string(name_of(dtype)), dtype, {2, 3}), {}};
    tensor.bytes.resize(6 * bytes_of(dtype), std::byte{1});
    state.tensors.emplace(tensor.spec.name, tensor);
  }
  const Result<FileEntry> entry = save_rank(*files_, directory_.path(), state, 0, 1);
  ASSERT_TRUE(entry.ok()) << entry.error().message;
  const json loaded = run("load " + (directory_.path() / entry.value().name).string());
  ASSERT_EQ(loaded.size(), state.tensors.size());
  for (const auto& [name, tensor] : state.tensors) {
    ASSERT_TRUE(loaded.contains(name)) << name;
    EXPECT_EQ(loaded[name]["dtype"], std::string(name_of(tensor.spec.dtype)));
    EXPECT_EQ(loaded[name]["shape"], tensor.spec.shape);
    EXPECT_EQ(loaded[name]["bytes"], hex(tensor.bytes)) << name;
  }
}

TEST_F(HuggingFace, WritesWhatWeLoad) {
  const auto path = directory_.path() / "theirs.safetensors";
  const json written = run("write " + path.string());
  const Result<TensorFileReader> reader = TensorFileReader::open(*files_, path);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader.value().metadata().at("key"), "value");
  ASSERT_EQ(reader.value().tensors().size(), written.size());
  for (const PlacedTensor& tensor : reader.value().tensors()) {
    std::vector<std::byte> bytes(tensor.bytes);
    ASSERT_TRUE(reader.value().read(tensor, 0, bytes).ok());
    EXPECT_EQ(written[tensor.name]["dtype"], std::string(name_of(tensor.dtype)));
    EXPECT_EQ(written[tensor.name]["shape"], tensor.shape);
    EXPECT_EQ(written[tensor.name]["bytes"], hex(bytes)) << tensor.name;
  }
}

}  // namespace
}  // namespace bottomless
