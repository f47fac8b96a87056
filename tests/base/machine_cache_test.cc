#include "base/machine_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "support/temporary_directory.h"

namespace bottomless {
namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<double>;

class MachineCacheTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  const MachineCache cache_{directory_.path() / "some" / "where" / "measured"};
};

TEST_F(MachineCacheTest, GivesBackWhatWasKept) {
  EXPECT_FALSE(cache_.find("speed"));
  cache_.keep("speed", {1.5, 1.0 / 3, 1e-300});
  cache_.keep("other speed", {2});
  cache_.keep("nothing", {});
  EXPECT_EQ(cache_.find("speed"), (Numbers{1.5, 1.0 / 3, 1e-300}));
  EXPECT_EQ(cache_.find("other speed"), Numbers{2});
  cache_.keep("speed", {7});
  EXPECT_EQ(cache_.find("speed"), Numbers{7});
  EXPECT_EQ(cache_.find("other speed"), Numbers{2});
  EXPECT_FALSE(cache_.find("spee"));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache_.file().parent_path()), {}), 1)
      << "nothing stays beside it";
}

TEST_F(MachineCacheTest, IgnoresWhatMakesNoSense) {
  cache_.keep("speed", {1});
  std::ofstream(cache_.file(), std::ios::app) << "no number\nx\tnan\ny\t1e999\nz\t5 rubbish\nhalf";
  EXPECT_EQ(cache_.find("speed"), Numbers{1});
  for (const char* key : {"no number", "x", "y", "z", "half"})
    EXPECT_FALSE(cache_.find(key)) << key;
  for (const char* content : {"", "\n", "another file\nspeed\t1\n"}) {
    std::ofstream(cache_.file()) << content;
    EXPECT_FALSE(cache_.find("speed"));
  }
  cache_.keep("speed", {3});
  EXPECT_EQ(cache_.find("speed"), Numbers{3});
}

TEST_F(MachineCacheTest, DoesWithoutAFile) {
  const MachineCache none{fs::path()};
  none.keep("speed", {1});
  EXPECT_FALSE(none.find("speed"));
  std::ofstream(directory_.path() / "file") << "in the way";
  for (const fs::path& path :
       {directory_.path() / "file" / "measured", fs::path("/proc/measured")}) {
    const MachineCache cannot{path};
    cannot.keep("speed", {1});
    EXPECT_FALSE(cannot.find("speed"));
  }
  fs::create_directories(directory_.path() / "directory" / "inside");
  const MachineCache directory{directory_.path() / "directory"};
  directory.keep("speed", {1});
  EXPECT_FALSE(directory.find("speed"));
  EXPECT_EQ(directory_.entries(), 2u);
}

TEST_F(MachineCacheTest, OfTheUserIsWhereCachesAre) {
  const auto with = [](const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    };
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    return MachineCache::of_user().file();
  };
  EXPECT_EQ(with("/caches", "/home/me"), "/caches/bottomless/measured");
  EXPECT_EQ(with(nullptr, "/home/me"), "/home/me/.cache/bottomless/measured");
  EXPECT_EQ(with("", "/home/me"), "/home/me/.cache/bottomless/measured");
  EXPECT_EQ(with("relative", "/home/me"), "/home/me/.cache/bottomless/measured");
  EXPECT_EQ(with(nullptr, nullptr), "");
}

TEST_F(MachineCacheTest, KeyNamesTheProcessor) {
  fs::create_directories(directory_.path() / "proc");
  std::ofstream(directory_.path() / "proc/cpuinfo") << "model name\t: A CPU\t@ 3 GHz\n";
  const std::string key = machine_key(directory_.path());
  EXPECT_TRUE(key.starts_with("A CPU @ 3 GHz, ")) << key;
  EXPECT_NE(key.find(" cores, bottomless "), std::string::npos) << key;
  fs::remove(directory_.path() / "proc/cpuinfo");
  EXPECT_FALSE(machine_key(directory_.path()).starts_with(","));
}

}  // namespace
}  // namespace bottomless
