// Characters that PCRE2 10.42, which knows Unicode 14, takes for something else than Oniguruma 6.9.10 with Unicode 16,
// the engine of the PyPI package `tokenizers`. In text that is to be matched each is replaced by an older character of
// the same category and the same number of bytes, so that both engines cut the text at the same places.
// Thread-safety: free functions without state.
#pragma once
#include <string>
#include <string_view>

namespace bottomless::text {

// The character to match in place of `code`; most stand for themselves.
char32_t stand_in(char32_t code);

// `text` itself if nothing in it needs a stand-in, else a copy of the same length that is made in `storage`.
std::string_view with_stand_ins(std::string_view text, std::string& storage);

}  // namespace bottomless::text
