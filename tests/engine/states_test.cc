// The diagram that people read is the table that the code obeys.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

#include "engine/block.h"

namespace bottomless {
namespace {

std::string name(State state) { return std::string(kStateNames[static_cast<size_t>(state)]); }

TEST(States, TheDiagramInTheDocumentationIsTheTableInTheCode) {
  std::ifstream page(BOTTOMLESS_STATES_PAGE);
  ASSERT_TRUE(page.is_open()) << BOTTOMLESS_STATES_PAGE;
  std::set<std::string> drawn;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("```")) {
      inside = line == "```mermaid";
    } else if (inside && line.find("-->") != std::string::npos) {
      drawn.insert(line.substr(line.find_first_not_of(' ')));
    }
  }
  std::set<std::string> obeyed{"[*] --> absent: a storage is made"};
  for (const Transition& each : kTransitions)
    obeyed.insert(name(each.from) + " --> " + name(each.to) + ": " + std::string(each.when));
  EXPECT_EQ(drawn, obeyed);
}

TEST(States, EveryOtherChangeIsABug) {
  for (size_t i = 0; i < kStateNames.size(); ++i) {
    for (size_t j = 0; j < kStateNames.size(); ++j) {
      const auto from = static_cast<State>(i), to = static_cast<State>(j);
      const bool allowed =
          std::any_of(kTransitions.begin(), kTransitions.end(),
                      [&](const Transition& t) { return t.from == from && t.to == to; });
      Block block;
      block.state = from;
      if (allowed) {
        block.become(to);
        EXPECT_EQ(block.state, to);
      } else {
        EXPECT_DEATH(block.become(to), "a way that does not exist") << name(from) << name(to);
      }
    }
  }
}

}  // namespace
}  // namespace bottomless
