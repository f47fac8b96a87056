#include "base/suggestion.h"

#include <gtest/gtest.h>

namespace bottomless {
namespace {

const std::vector<std::string> kVerbs{"run", "train", "generate", "verify", "export", "plan"};

TEST(ClosestName, IsTheOneWithFewestChanges) {
  for (const auto& [given, meant] :
       std::vector<std::pair<std::string, std::string>>{{"trian", "train"},
                                                        {"tran", "train"},
                                                        {"gernerate", "generate"},
                                                        {"rnu", "run"},
                                                        {"verfiy", "verify"},
                                                        {"Train", "train"}}) {
    EXPECT_EQ(closest_name(given, kVerbs), meant) << given;
  }
}

TEST(ClosestName, IsNoneWhereNothingIsClose) {
  for (const char* given : {"", "x", "foo", "quantise", "help"})
    EXPECT_EQ(closest_name(given, kVerbs), std::nullopt) << given;
  EXPECT_EQ(closest_name("train", {}), std::nullopt);
}

TEST(UnknownText, NamesWhatWasGivenAndWhatWasMeant) {
  EXPECT_EQ(unknown_text("verb", "trian", kVerbs),
            "there is no verb 'trian'; did you mean 'train'?");
  EXPECT_EQ(unknown_text("verb", "foo", kVerbs), "there is no verb 'foo'");
}

TEST(UnknownOption, IsTheFirstThatNobodyKnows) {
  const std::vector<KnownOption> known{{"--memory", true}, {"--json", false}};
  const auto unknown = [&](const std::vector<std::string>& words) {
    return unknown_option(words, known);
  };
  EXPECT_EQ(unknown({"--memroy", "4GiB", "--jsno"}), "--memroy");
  EXPECT_EQ(unknown({"--json", "--memroy=4GiB"}), "--memroy");
  EXPECT_EQ(unknown({"--memory", "--what", "--json"}), std::nullopt) << "that is its value";
  EXPECT_EQ(unknown({"--memory=4GiB", "--what"}), "--what");
  EXPECT_EQ(unknown({"--", "--what"}), std::nullopt);
  EXPECT_EQ(unknown({"file", "-x"}), std::nullopt);
}

}  // namespace
}  // namespace bottomless
