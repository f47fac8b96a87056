#include "engine/places.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>

#include "support/memory_store.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 64_KiB;
using Leave = Places::Leave;

TEST(Spares, AreTakenWhenTheStoreIsFirstUsedAndGivenBackAtTheEnd) {
  MemoryStore store;
  {
    Places places(store, kBlock, 3);
    EXPECT_EQ(store.extents(), 0u);
    const Place place = places.allocate(kBlock, Leave::all).value();
    EXPECT_EQ(store.extents(), 4u);
    places.free(place);
  }
  EXPECT_EQ(store.extents(), 0u);
}

TEST(Spares, AreLentByNeedWhenTheStoreIsFull) {
  MemoryStore store({.capacity = 5 * kBlock});
  Places places(store, kBlock, 4);
  const Place first = places.allocate(kBlock, Leave::all).value();
  EXPECT_EQ(places.allocate(kBlock, Leave::all).error().code, Code::no_space);
  EXPECT_TRUE(places.full());
  std::vector<Place> lent;
  for (int i = 0; i < 2; ++i) lent.push_back(places.allocate(kBlock / 2, Leave::half).value());
  EXPECT_EQ(places.allocate(kBlock, Leave::half).error().code, Code::no_space);
  for (int i = 0; i < 2; ++i) lent.push_back(places.allocate(kBlock, Leave::none).value());
  EXPECT_EQ(places.allocate(kBlock, Leave::none).error().code, Code::no_space);
  // What comes back while the store is full makes up the spares again.
  places.free(lent.back());
  lent.pop_back();
  EXPECT_EQ(places.allocate(kBlock, Leave::half).error().code, Code::no_space);
  lent.push_back(places.allocate(kBlock, Leave::none).value());
  for (const Place& place : lent) places.free(place);
  places.free(first);
}

TEST(Spares, DoNotServeWhatIsLargerThanTheyAre) {
  MemoryStore store({.capacity = 2 * kBlock});
  Places places(store, kBlock, 2);
  EXPECT_EQ(places.allocate(2 * kBlock, Leave::none).error().code, Code::no_space);
}

// The two ends of a pipe: one that a child has, one that tells its parent that the child has ended.
struct Child {
  Child() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    parents_end = UniqueFd(ends[0]);
    childs_end.emplace(ends[1]);
  }
  void end() { childs_end.reset(); }

  UniqueFd parents_end;
  std::optional<UniqueFd> childs_end;
};

TEST(Frozen, PlacesAreKeptUntilTheChildHasEnded) {
  MemoryStore store;
  Places places(store, kBlock, 0);
  const Place before = places.allocate(kBlock, Leave::all).value();
  EXPECT_TRUE(places.may_write(before));
  Child child;
  places.freeze(std::move(child.parents_end));
  EXPECT_FALSE(places.may_write(before));
  places.free(before);
  EXPECT_EQ(store.extents(), 1u);
  child.end();
  places.free(places.allocate(kBlock, Leave::all).value());
  EXPECT_EQ(store.extents(), 0u);
}

TEST(Frozen, PlacesTakenAfterwardsAreNot) {
  MemoryStore store;
  Places places(store, kBlock, 0);
  Child child;
  places.freeze(std::move(child.parents_end));
  const Place after = places.allocate(kBlock, Leave::all).value();
  EXPECT_TRUE(places.may_write(after));
  places.free(after);
  EXPECT_EQ(store.extents(), 0u);
}

TEST(Frozen, UntilTheLastOfSeveralChildrenHasEnded) {
  MemoryStore store;
  Places places(store, kBlock, 0);
  const Place place = places.allocate(kBlock, Leave::all).value();
  Child first;
  Child second;
  places.freeze(std::move(first.parents_end));
  places.freeze(std::move(second.parents_end));
  second.end();
  EXPECT_FALSE(places.may_write(place));
  first.end();
  EXPECT_TRUE(places.may_write(place));
  places.free(place);
}

}  // namespace
}  // namespace bottomless
