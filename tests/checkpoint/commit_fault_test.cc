// At every request to the file system: it fails, the process is killed there, or the power goes. Afterwards the directory
// holds the old checkpoint or the new one, complete; the new one for certain if the save said so.
#include <gtest/gtest.h>

#include "checkpoint/verify.h"
#include "state.h"
#include "support/simulated_files.h"

namespace bottomless {
namespace {

using Survives = SimulatedFiles::Survives;
const std::filesystem::path kDirectory = "/run";

class CommitFaults : public testing::TestWithParam<std::tuple<FileFault, bool>> {
 protected:
  CommitFaults() : old_(random_state(1, 5, 300, random_)), new_(random_state(2, 5, 300, random_)) {
    EXPECT_TRUE(!has_old() || save(before_, kDirectory, old_).ok());
  }
  static FileFault fault() { return std::get<0>(GetParam()); }
  static bool has_old() { return std::get<1>(GetParam()); }

  // Whether the new one is there; fails unless it is that or the old one.
  bool is_new(Files& files) {
    const Result<State> loaded = load(files, kDirectory);
    if (!loaded.ok() && !has_old() && loaded.error().code == Code::not_found) return false;
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    if (!loaded.ok()) return false;
    if (loaded.value() == new_) return true;
    EXPECT_TRUE(has_old() && loaded.value() == old_) << "neither the old nor the new";
    return false;
  }

  // What is left in each of many worlds; false if one of them lost what was promised.
  void expect_complete(const SimulatedFiles& files, bool promised) {
    const auto look = [&](SimulatedFiles& left, const std::string& how) {
      SCOPED_TRACE(how);
      const bool found = is_new(left);
      EXPECT_TRUE(found || !promised) << "the save had returned";
      // And life goes on there, with whatever lies around.
      const Result<Removed> removed = remove_leftovers(left, kDirectory);
      EXPECT_TRUE(removed.ok() || removed.error().code == Code::not_found);
      EXPECT_EQ(is_new(left), found);
      EXPECT_EQ(is_new(*left.after_power_cut(Survives::something, random_)), found);
      const Result<Removed> again = save(left, kDirectory, new_);
      EXPECT_TRUE(again.ok()) << again.error().message;
      EXPECT_TRUE(is_new(left));
      EXPECT_EQ(left.list(kDirectory).value().size(), 4u) << "three shards and the manifest";
    };
    look(*files.after_kill(), "killed");
    look(*files.after_power_cut(Survives::nothing, random_), "power cut, nothing unsynced is left");
    look(*files.after_power_cut(Survives::everything, random_), "power cut, everything is left");
    for (int i = 0; i < 3; ++i) {
      look(*files.after_power_cut(Survives::something, random_), "power cut, something is left");
    }
  }

  Random random_{31};
  SimulatedFiles before_;
  State old_, new_;
};

TEST_P(CommitFaults, AtEveryRequestLeaveTheOldOrTheNew) {
  BOTTOMLESS_TRACE_SEED(random_);
  uint64_t failures = 0;
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE("request " + std::to_string(n));
    ASSERT_LT(n, 1000u);
    const auto files = before_.after_kill();
    files->faults = {fault(), n};
    const Result<Removed> saved = save(*files, kDirectory, new_);
    const bool fired = files->faults.fired > 0;
    if (!fired || fault() == FileFault::short_transfer) {
      EXPECT_TRUE(saved.ok()) << saved.error().message;
    }
    failures += !saved.ok();
    expect_complete(*files, saved.ok());
    if (HasFailure() || !fired) break;
  }
  EXPECT_TRUE(failures > 20 || fault() == FileFault::short_transfer) << "hardly anything was tried";
}

TEST_P(CommitFaults, AtEveryRequestLeaveTheOneBeforeWhereTwoAreKept) {
  BOTTOMLESS_TRACE_SEED(random_);
  if (!has_old()) return;
  const State oldest = random_state(0, 5, 300, random_);
  SimulatedFiles begun;
  ASSERT_TRUE(save(begun, kDirectory, oldest, 3, Keep::last_two).ok());
  ASSERT_TRUE(save(begun, kDirectory, old_, 3, Keep::last_two).ok());
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE("request " + std::to_string(n));
    ASSERT_LT(n, 1000u);
    const auto files = begun.after_kill();
    files->faults = {fault(), n};
    const Result<Removed> saved = save(*files, kDirectory, new_, 3, Keep::last_two);
    const bool fired = files->faults.fired > 0;
    const auto look = [&](SimulatedFiles& left) {
      const bool found = is_new(left);
      EXPECT_TRUE(found || !saved.ok()) << "the save had returned";
      const Result<State> before = load(left, kDirectory, kPreviousManifestName);
      ASSERT_TRUE(before.ok()) << before.error().message;
      // A complete one, whichever: the old manifest may not have been readable when it was to be kept, and until the save has
      // returned, the renaming of one manifest may be on the disk without the other's.
      EXPECT_TRUE(before.value() == old_ || (fired && before.value() == oldest));
      EXPECT_TRUE(remove_leftovers(left, kDirectory).ok());
      EXPECT_EQ(is_new(left), found);
      EXPECT_EQ(load(left, kDirectory, kPreviousManifestName).value(), before.value());
      ASSERT_TRUE(save(left, kDirectory, new_, 3, Keep::last_two).ok());
      EXPECT_EQ(left.list(kDirectory).value().size(), 8u) << "two of three shards and a manifest";
    };
    look(*files->after_kill());
    look(*files->after_power_cut(Survives::nothing, random_));
    look(*files->after_power_cut(Survives::everything, random_));
    for (int i = 0; i < 3; ++i) look(*files->after_power_cut(Survives::something, random_));
    if (HasFailure() || !fired) break;
  }
}

using PassingFaults = CommitFaults;  // after which the process goes on

TEST_P(PassingFaults, AreOverAfterTheNextSave) {
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE("request " + std::to_string(n));
    const auto files = before_.after_kill();
    files->faults = {fault(), n};
    (void)save(*files, kDirectory, new_);
    const bool fired = files->faults.fired > 0;
    files->faults = {};
    ASSERT_TRUE(save(*files, kDirectory, new_).ok());
    EXPECT_EQ(files->list(kDirectory).value().size(), 4u);
    ASSERT_TRUE(is_new(*files->after_power_cut(Survives::something, random_)));
    if (!fired) break;
  }
}

std::string name_of_fault(FileFault fault) {
  switch (fault) {
    case FileFault::io_error:
      return "IoError";
    case FileFault::no_space:
      return "NoSpace";
    case FileFault::short_transfer:
      return "ShortTransfer";
    case FileFault::nothing_written:
      return "NothingWritten";
    default:
      return "Stop";
  }
}

std::string name_of_param(const testing::TestParamInfo<std::tuple<FileFault, bool>>& info) {
  return name_of_fault(std::get<0>(info.param)) +
         (std::get<1>(info.param) ? "OverAnOldOne" : "InANewDirectory");
}

INSTANTIATE_TEST_SUITE_P(Each, CommitFaults,
                         testing::Combine(testing::Values(FileFault::io_error, FileFault::no_space,
                                                          FileFault::short_transfer,
                                                          FileFault::nothing_written,
                                                          FileFault::stop),
                                          testing::Bool()),
                         name_of_param);
INSTANTIATE_TEST_SUITE_P(Each, PassingFaults,
                         testing::Combine(testing::Values(FileFault::io_error, FileFault::no_space,
                                                          FileFault::nothing_written),
                                          testing::Bool()),
                         name_of_param);

}  // namespace
}  // namespace bottomless
