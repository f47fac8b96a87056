// What is wrong with a command line that CLI11 has refused: a verb or an option that nobody knows is named before anything that is
// missing because of it. A template, since this part does not know the parser.
// Thread-safety: a free function without state.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/suggestion.h"

namespace bottomless {

// `app`: a CLI::App. `words`: what it was given. `otherwise`: what the parser says.
template <class App>
std::string command_problem(const App& app, std::span<const std::string> words,
                            const std::string& otherwise) {
  std::vector<std::string> names;
  for (const App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  if (!names.empty() && !words.empty() && !words.front().starts_with('-')) {
    for (const App* verb : app.get_subcommands({})) {
      if (verb->get_name() == words.front())
        return command_problem(*verb, words.subspan(1), otherwise);
    }
    return unknown_text("verb", words.front(), names);
  }
  std::vector<KnownOption> known;
  for (const auto* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      known.push_back({"--" + name, option->get_items_expected_max() > 0});
  }
  const auto unknown = unknown_option(words, known);
  if (!unknown) return otherwise;
  names.clear();
  for (const KnownOption& option : known) names.push_back(option.name);
  return unknown_text("option", *unknown, names);
}

}  // namespace bottomless
