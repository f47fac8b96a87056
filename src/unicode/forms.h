// Unicode's normal forms and lower case, with the results of the PyPI package `tokenizers`.
// Thread-safety: free functions without state.
#pragma once
#include <string>

namespace bottomless::text {

enum class Form { nfc, nfd, nfkc, nfkd };

// `text` is UTF-8.
void normalize(Form form, std::string& text);

void make_lowercase(std::string& text);

}  // namespace bottomless::text
