// Runs a fuzz target without libFuzzer: every file of its corpus, then random changes of them.
//   fuzz_NAME CORPUS [CHANGES]
// The seed is printed and BOTTOMLESS_SEED repeats it; a failed property aborts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using bottomless::Random;

constexpr size_t kMostBytes = 4096;

void run(const std::string& input) {
  // A copy of exactly this size: AddressSanitizer then sees the first byte read behind it.
  const std::vector<uint8_t> exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string part_of(const std::string& text, Random& random) {
  const size_t from = random.below(text.size() + 1);
  return text.substr(from, random.below(std::min<size_t>(text.size() - from, 64) + 1));
}

// One small step away from `input`; `other` is what a piece may come from.
void change(std::string& input, const std::string& other, Random& random) {
  const size_t at = random.below(input.size() + 1);
  const size_t length = random.below(std::min<size_t>(input.size() - at, 16) + 1);
  switch (random.below(6)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << random.below(8)));
      break;
    case 1:
      input.insert(at, 1, static_cast<char>(random.below(256)));
      break;
    case 2:
      input.erase(at, length);
      break;
    case 3:
      input.insert(at, part_of(other, random));
      break;
    case 4:
      input.replace(at, length, part_of(input, random));
      break;
    default:
      input.insert(at,
                   std::string(random.between(1, 24), static_cast<char>(random.between('0', '9'))));
  }
  input.resize(std::min(input.size(), kMostBytes));
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s CORPUS [CHANGES]\n", arguments[0]);
    return 2;
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(arguments[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // or a seed would mean something else elsewhere
  std::vector<std::string> corpus;
  for (const fs::path& file : files) corpus.push_back(read(file));
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no file to begin with\n", arguments[1]);
    return 2;
  }
  for (const std::string& input : corpus) run(input);

  Random random(41);
  const long changes = count > 2 ? std::atol(arguments[2]) : 10000;
  for (long i = 0; i < changes; ++i) {
    std::string input = random.pick(corpus);
    for (uint64_t steps = random.between(1, 8); steps > 0; --steps) {
      change(input, random.pick(corpus), random);
    }
    run(input);
  }
  std::printf("%zu files and %ld changes of them\n", corpus.size(), changes);
  return 0;
}
