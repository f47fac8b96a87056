#include "tokenizers/bpe/word_counts.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "base/errno_error.h"
#include "tokenizers/bpe/byte_level.h"
#include "unicode/regex.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

constexpr size_t kReadAtOnce = size_t{1} << 20;

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using Counts = std::unordered_map<std::string, uint64_t, Hash, std::equal_to<>>;

Result<void> count(const Regex& words, std::string_view text, Counts& counts) {
  std::string valid;
  if (!is_utf8(text)) text = valid = replace_invalid(text);
  std::vector<Span> spans;
  if (Result<void> found = words.find_all(text, spans); !found.ok()) return found;
  for (const Span& span : spans) {
    const std::string_view word = text.substr(span.begin, span.end - span.begin);
    const auto known = counts.find(word);
    if (known != counts.end()) {
      ++known->second;
    } else {
      counts.emplace(word, 1);
    }
  }
  return {};
}

// Where the text may be cut without cutting a word: in front of the last space or end of line that follows something
// else. No word goes on behind its last character with a space. 0: nowhere.
size_t last_safe_cut(std::string_view text) {
  const auto is_space = [](char byte) { return byte == ' ' || byte == '\n'; };
  for (size_t at = text.size(); at-- > 1;) {
    const auto before = static_cast<unsigned char>(text[at - 1]);
    if (is_space(text[at]) && before > ' ' && before < 0x7F) return at;
  }
  return 0;
}

Result<void> count_file(const std::filesystem::path& path, const Regex& words, Counts& counts,
                        const std::function<void(uint64_t)>& on_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_error(errno, "read " + path.string() + " to learn a tokenizer");
  std::string text;
  while (file) {
    const size_t before = text.size();
    text.resize(before + kReadAtOnce);
    file.read(text.data() + before, kReadAtOnce);
    const auto got = static_cast<size_t>(file.gcount());
    text.resize(before + got);
    on_bytes(got);
    const size_t cut = file ? last_safe_cut(text) : text.size();
    if (Result<void> counted = count(words, std::string_view(text).substr(0, cut), counts);
        !counted.ok())
      return counted;
    text.erase(0, cut);
  }
  if (file.bad()) return errno_error(errno, "read " + path.string() + " to learn a tokenizer");
  return {};
}

}  // namespace

Result<std::vector<std::pair<std::string, uint64_t>>> count_words(
    std::span<const std::filesystem::path> files, const std::function<void(uint64_t)>& progress) {
  Result<Regex> words = Regex::compile(kGpt2Pattern);
  BOTTOMLESS_CHECK(words.ok(), "GPT-2's expression does not compile");
  Counts counts;
  uint64_t bytes = 0;
  for (const std::filesystem::path& file : files) {
    Result<void> counted = count_file(file, words.value(), counts, [&](uint64_t read) {
      bytes += read;
      progress(bytes);
    });
    if (!counted.ok()) return counted.error();
  }
  std::vector<std::pair<std::string, uint64_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace bottomless::text
