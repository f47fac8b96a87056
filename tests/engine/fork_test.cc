// A forked child sees memory as it was, and the parent goes on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;

// Runs `body` in a child forked from the engine's process, as the handlers of fork() would.
std::string in_forked(Rig& rig, const std::function<std::string()>& body) {
  rig.engine().before_fork();
  const std::string said = in_child([&] {
    rig.engine().after_fork_in_child();
    return body();
  });
  rig.engine().after_fork_in_parent(UniqueFd());
  return said;
}

TEST(Forked, ChildReadsWhatWasAwayAndWritesItsOwnCopy) {
  Rig rig;
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 6; ++i) storages.push_back(rig.filled(kBlock, i));
  rig.store().wait_until_idle();
  const std::string said = in_forked(rig, [&]() -> std::string {
    for (uint64_t i = 0; i < 6; ++i) {
      if (!rig.engine().touch_in_child(storages[i], Access::read)) return "not served";
      if (!has_pattern(storages[i], kBlock, i)) return "wrong bytes in " + std::to_string(i);
      if (!rig.engine().touch_in_child(storages[i] + kBlock - 1, Access::write)) return "refused";
      write_pattern(storages[i], kBlock, i + 100);
    }
    return "as it was";
  });
  EXPECT_EQ(said, "as it was");
  for (uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i)) << i;
}

TEST(Forked, ParentWritesElsewhereWhileTheChildLives) {
  Rig rig;
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 6; ++i) storages.push_back(rig.filled(kBlock, i));
  rig.push_out(storages[0]);
  const size_t extents = rig.store().extents();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    const UniqueFd childs_end(ends[1]);
    rig.engine().before_fork();
    rig.engine().after_fork_in_parent(UniqueFd(ends[0]));
    for (uint64_t i = 0; i < 6; ++i) rig.fill(storages[i], kBlock, i + 50);
    rig.push_out(storages[0]);
    EXPECT_GT(rig.store().extents(), extents) << "the old content must still be there";
    for (uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i + 50)) << i;
  }
  for (std::byte* storage : storages) rig.free(storage);
  rig.push_out(rig.filled(kBlock, 1));  // notices that the child has ended
}

TEST(Forked, AddressesOfOthersAreNotServed) {
  Rig rig;
  int mine = 0;
  EXPECT_EQ(in_forked(rig,
                      [&]() -> std::string {
                        return rig.engine().touch_in_child(&mine, Access::read) ? "served" : "not";
                      }),
            "not");
}

}  // namespace
}  // namespace bottomless
