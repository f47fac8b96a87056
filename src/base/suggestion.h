// Names what a command line has that nobody knows, and what was probably meant.
// Thread-safety: free functions without state.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless {

// The known name that takes the fewest changes (a letter more, less or other, two neighbours swapped), if these are few.
std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& known);

struct KnownOption {
  std::string name;  // with its dashes
  bool takes_value = false;
};

// The first word of the command line that looks like an option and is none of these; up to a "--".
std::optional<std::string> unknown_option(std::span<const std::string> words,
                                          std::span<const KnownOption> known);

// "there is no verb 'trian'; did you mean 'train'?"
std::string unknown_text(std::string_view what, std::string_view given,
                         const std::vector<std::string>& known);

}  // namespace bottomless
