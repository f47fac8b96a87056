#include "unicode/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <bottomless/bytes.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"
#include "unicode/stand_ins.h"

namespace bottomless::text {
template <class T, void (*release)(T*)>
struct Release {
  void operator()(T* pointer) const { release(pointer); }
};
using CompiledCode = std::unique_ptr<pcre2_code, Release<pcre2_code, pcre2_code_free>>;
using Matches = std::unique_ptr<pcre2_match_data, Release<pcre2_match_data, pcre2_match_data_free>>;
using Limits =
    std::unique_ptr<pcre2_match_context, Release<pcre2_match_context, pcre2_match_context_free>>;

namespace {

// For one match. Sensible expressions take a few steps for each character that they look at, and look at all of a text at
// most; of memory, what a group that goes on to the end of it takes.
constexpr uint64_t kLeastSteps = 10'000'000;
constexpr uint64_t kStepsPerByte = 64;
constexpr uint64_t kLeastKiB = 64 << 10;
constexpr uint64_t kKiBPerByte = 1;

Limits limits_for(size_t bytes) {
  const auto limit = [&](uint64_t least, uint64_t each) {
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
    return static_cast<uint32_t>(std::min(kMost, std::max(least, each * bytes)));
  };
  Limits limits(pcre2_match_context_create(nullptr));
  if (limits == nullptr) return limits;
  pcre2_set_match_limit(limits.get(), limit(kLeastSteps, kStepsPerByte));
  pcre2_set_depth_limit(limits.get(), limit(kLeastSteps, kStepsPerByte));
  pcre2_set_heap_limit(limits.get(), limit(kLeastKiB, kKiBPerByte));
  return limits;
}

// What Oniguruma's Ruby syntax and PCRE2 both accept and understand differently, or "".
std::string_view read_differently(std::string_view pattern) {
  constexpr std::string_view kEscapes = "wWbBhHRXKGkgZuo";
  constexpr auto kConstructs =
      std::to_array<std::string_view>({"&&", "[[:", "(?m", "(?s", "(?x", "(?~", "(*"});
  bool in_class = false;
  for (size_t at = 0; at < pattern.size(); ++at) {
    const std::string_view rest = pattern.substr(at);
    if (rest[0] == '\\') {
      if (rest.size() > 1 && kEscapes.find(rest[1]) != std::string_view::npos) {
        return rest.substr(0, 2);
      }
      ++at;
      continue;
    }
    const bool begins_class = rest[0] == '[' && !in_class;
    for (const std::string_view construct : kConstructs) {
      if (construct == "&&" && !in_class) continue;
      if (rest.starts_with(construct)) return construct;
    }
    if (in_class && rest[0] == '[') return "[ inside [ ]";
    if (begins_class) {
      in_class = true;
      if (rest.starts_with("[^")) ++at;
    } else if (rest[0] == ']') {
      in_class = false;
    }
  }
  return {};
}

}  // namespace

struct Regex::Compiled {
  CompiledCode code;
  std::string pattern;
  std::string literal;  // matched by itself when there is no code
};

Regex::Regex(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  const std::string attempted = "compile the expression '" + std::string(pattern) + "'";
  if (const std::string_view construct = read_differently(pattern); !construct.empty()) {
    return Error{Code::unsupported,
                 attempted + ": '" + std::string(construct) + "' is not supported"};
  }
  int error = 0;
  PCRE2_SIZE where = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &where,
                                     nullptr));
  if (compiled->code == nullptr) {
    std::array<char, 256> why{};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(why.data()), why.size());
    return Error{Code::corrupt,
                 attempted + ": " + why.data() + " at byte " + std::to_string(where)};
  }
  // Without it, where the processor is not known to it, matching is slower and the same.
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  compiled->pattern = pattern;
  return Regex(std::move(compiled));
}

Regex Regex::literal(std::string_view text) {
  auto compiled = std::make_unique<Compiled>();
  compiled->literal = text;
  return Regex(std::move(compiled));
}

Result<void> Regex::find_all(std::string_view text, std::vector<Span>& matches) const {
  if (compiled_->code == nullptr) {
    const std::string& wanted = compiled_->literal;
    if (wanted.empty()) return {};
    for (size_t at = text.find(wanted); at != std::string_view::npos;
         at = text.find(wanted, at + wanted.size())) {
      matches.push_back({at, at + wanted.size()});
    }
    return {};
  }
  std::string storage;
  const std::string_view subject = with_stand_ins(text, storage);
  const Matches found(pcre2_match_data_create(1, nullptr));
  const Limits limits = limits_for(subject.size());
  BOTTOMLESS_CHECK(found != nullptr && limits != nullptr, "out of memory");
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
  const pcre2_code* code = compiled_->code.get();
  for (size_t at = 0; at < subject.size();) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code, bytes, subject.size(), at, options | PCRE2_NO_UTF_CHECK, found.get(),
                         limits.get());
    };
    int result = match(PCRE2_NOTEMPTY);
    // The compiled code has a small stack; the interpreter takes what it needs.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NOTEMPTY | PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return {};
    if (result < 0) {
      return Error{result == PCRE2_ERROR_NOMEMORY ? Code::no_memory : Code::unsupported,
                   "find '" + compiled_->pattern + "' in a text of " +
                       format_bytes(subject.size()) +
                       ": that takes more steps or memory than is sensible; the tokenizer may be "
                       "damaged or made to do harm: take it from elsewhere"};
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(found.get());
    matches.push_back({ends[0], ends[1]});
    at = ends[1];
  }
  return {};
}

}  // namespace bottomless::text
