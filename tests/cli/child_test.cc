#include "cli/child.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace bottomless::cli {
namespace {

using namespace std::chrono_literals;

Child shell(const std::string& script) { return {.command = {"/bin/sh", "-c", script}}; }

TEST(Child, ReturnsBothStreams) {
  const Result<std::string> said = output_of(shell("echo one; echo two >&2; printf three"));
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(said.value(), "one\ntwo\nthree");
}

TEST(Child, ThatPrintsMoreThanAPipeHolds) {
  const Result<std::string> said = output_of(shell("head -c 300000 /dev/zero"));
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(said.value().size(), 300000u);
}

TEST(Child, TakesArgumentsAsTheyAre) {
  const Result<std::string> said = output_of({.command = {"/bin/echo", "a  b", "$HOME", "'"}});
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(said.value(), "a  b $HOME '\n");
}

TEST(Child, ReplacesVariablesAndInheritsTheRest) {
  setenv("BOTTOMLESS_TEST_A", "ours", 1);
  setenv("BOTTOMLESS_TEST_AB", "ours", 1);
  Child child = shell("echo $BOTTOMLESS_TEST_A $BOTTOMLESS_TEST_AB");
  child.variables = {"BOTTOMLESS_TEST_A=new"};
  EXPECT_EQ(output_of(child).value(), "new ours\n");
}

TEST(Child, ThatFailsIsAnErrorWithItsLastLine) {
  const Result<std::string> said = output_of(shell("echo first; echo the reason >&2; exit 3"));
  ASSERT_FALSE(said.ok());
  EXPECT_EQ(said.error().message, "run sh: it failed with 'the reason'");
  EXPECT_FALSE(output_of({.command = {"/there/is/no/such"}}).ok());
  EXPECT_FALSE(output_of(shell("kill -9 $$")).ok());
}

TEST(Child, ThatTakesTooLongIsEnded) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Child child{.command = {"/bin/sleep", "1000"}, .keep_open = ends[1], .deadline = 50ms};
  const Result<std::string> said = output_of(child);
  ASSERT_FALSE(said.ok());
  EXPECT_EQ(said.error().message, "run sleep: it took longer than 50 ms and was ended");
  close(ends[1]);
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);  // it held the other end while it lived
  close(ends[0]);
}

TEST(Child, ThatIsInTimeIsHeard) {
  Child child = shell("echo done");
  child.deadline = 24h;
  EXPECT_EQ(output_of(child).value(), "done\n");
}

}  // namespace
}  // namespace bottomless::cli
