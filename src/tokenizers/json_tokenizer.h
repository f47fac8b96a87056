// A tokenizer.json.
// Thread-safety: free functions without state; what they give is safe for const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <memory>
#include <string>
#include <string_view>

#include "tokenizers/tokenizer.h"

namespace bottomless::text {

// `text` is the whole file. Knows adds_bos and adds_eos from its post-processor. Errors begin with `attempted`.
Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view text,
                                                        const std::string& attempted);

}  // namespace bottomless::text
