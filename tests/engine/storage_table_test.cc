#include "engine/storage_table.h"

#include <gtest/gtest.h>

#include <map>

#include "memory/heap.h"
#include "support/random.h"

namespace bottomless {
namespace {

class StorageTableTest : public ::testing::Test {
 protected:
  Storage& add(Bytes bytes) {
    return table_.add(heap_->reserve(bytes).value(), bytes, Kind::other, nullptr);
  }
  void remove(Storage& storage) {
    std::byte* at = storage.at;
    const Bytes bytes = storage.bytes;
    table_.remove(storage);
    heap_->release(at, bytes);
  }
  std::vector<Block*> blocks_of(const std::byte* at, Bytes bytes) {
    std::vector<Block*> found;
    table_.each_block({.address = at, .bytes = bytes}, [&](Block& block) {
      found.push_back(&block);
      return true;
    });
    return found;
  }

  std::unique_ptr<Heap> heap_ =
      Heap::create({.limit = 8_MiB, .frames = {.large = 512_KiB, .small = 64_KiB}}).value();
  StorageTable table_{*heap_, 512_KiB};
};

TEST_F(StorageTableTest, FindsAStorageByAnyOfItsAddresses) {
  Storage& one = add(1_MiB + 5);
  Storage& two = add(3);
  for (const Bytes offset : {Bytes{0}, Bytes{1}, 512_KiB, 1_MiB, 1_MiB + 4})
    EXPECT_EQ(table_.find(one.at + offset), &one) << offset;
  EXPECT_EQ(table_.find(two.at + 2), &two);
  EXPECT_EQ(table_.find(&one), nullptr) << "an address of others";
  EXPECT_EQ(table_.storages(), 2u);
  remove(one);
  remove(two);
  EXPECT_EQ(table_.storages(), 0u);
}

TEST_F(StorageTableTest, CutsAStorageIntoBlocksAndVisitsThoseOfARange) {
  Storage& storage = add(1_MiB + 5);
  ASSERT_EQ(storage.blocks.size(), 3u);
  EXPECT_EQ(storage.blocks.back().bytes, 5u);
  std::byte* at = storage.at;
  Block* first = storage.blocks.data();
  EXPECT_EQ(blocks_of(at, 1), (std::vector<Block*>{first}));
  EXPECT_EQ(blocks_of(at + 512_KiB - 1, 2), (std::vector<Block*>{first, first + 1}));
  EXPECT_EQ(blocks_of(at + 512_KiB, 512_KiB), (std::vector<Block*>{first + 1}));
  EXPECT_EQ(blocks_of(at, storage.bytes).size(), 3u);
  EXPECT_EQ(blocks_of(at + 1_MiB, 1_MiB), (std::vector<Block*>{first + 2})) << "past its end";
  EXPECT_TRUE(blocks_of(at, 0).empty());
  EXPECT_EQ(&table_.block_at(storage, at + 512_KiB), first + 1);
  remove(storage);
}

TEST_F(StorageTableTest, IsTheMapThatItStandsFor) {
  Random random(131);
  BOTTOMLESS_TRACE_SEED(random);
  std::map<std::byte*, Storage*> alive;
  for (int step = 0; step < 3000; ++step) {
    if (alive.size() < 20 || random.one_in(2)) {
      Storage& storage = add(random.between(1, 2_MiB));
      alive[storage.at] = &storage;
    } else {
      const auto victim =
          std::next(alive.begin(), static_cast<ptrdiff_t>(random.below(alive.size())));
      std::byte* at = victim->first;
      remove(*victim->second);
      alive.erase(victim);
      EXPECT_EQ(table_.find(at), nullptr);
    }
  }
  for (const auto& [at, storage] : alive) ASSERT_EQ(table_.find(at + storage->bytes - 1), storage);
  EXPECT_EQ(table_.storages(), alive.size());
  table_.drain([&](Storage& storage) { remove(storage); });
  EXPECT_EQ(table_.storages(), 0u);
}

}  // namespace
}  // namespace bottomless
