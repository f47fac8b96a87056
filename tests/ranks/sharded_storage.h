// A storage that is sharded over ranks, for tests of how it comes together again.
// Thread-safety: each rank's part from one thread at a time.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "engine/rig.h"
#include "ranks/exchanges.h"
#include "ranks/gather.h"

namespace bottomless {

// Every rank has an engine of its own, and there its share, and the whole of it as it is gathered.
class ShardedStorage {
 public:
  ShardedStorage(uint64_t key, Bytes bytes, std::vector<Share> shares)
      : key_(key), bytes_(bytes), shares_(std::move(shares)), ranks_(shares_.size()) {}

  uint64_t key() const { return key_; }
  Bytes bytes() const { return bytes_; }
  uint64_t pattern_of(uint64_t version) const { return key_ * 1000 + version; }

  void make(int rank, Rig& rig, Exchange& exchange,
            Engine::Fetched fetched = Engine::Fetched::dropped, Format format = Format::plain,
            NodeShares::Kept* within_node = nullptr) {
    Here& here = at(rank);
    here.within_node = within_node;
    here.source =
        std::make_shared<Gather>(exchange, Sharded{.name = "storage " + std::to_string(key_),
                                                   .key = key_,
                                                   .shares = shares_,
                                                   .element = Element::float32,
                                                   .format = format,
                                                   .within_node = within_node});
    Result<void*> made =
        rig.engine().allocate_from(here.source, bytes_, Kind::parameter, fetched, "a test");
    ASSERT_TRUE(made.ok());
    here.whole = static_cast<std::byte*>(made.value());
    if (within_node != nullptr) within_node->renew(0, here.whole);
    if (share(rank).bytes() > 0) here.part = rig.allocate(share(rank).bytes());
  }

  // What an optimizer does with the share of a rank: writes what it is from now on.
  void update(int rank, Rig& rig, uint64_t version) {
    if (share(rank).bytes() == 0) return;
    const std::vector<std::byte> all = pattern(bytes_, pattern_of(version));
    fill(rig, at(rank).part, {all.data() + share(rank).begin, share(rank).bytes()});
  }
  static void fill(Rig& rig, std::byte* at, std::span<const std::byte> content) {
    constexpr Bytes kPart = 256_KiB;
    for (Bytes done = 0; done < content.size(); done += kPart) {
      const Bytes part = std::min(kPart, content.size() - done);
      Pins pins(rig.engine());
      rig.pin(pins, at + done, part, Access::write);
      std::memcpy(at + done, content.data() + done, part);
    }
  }
  void offer(int rank, Rig& rig, Exchange& exchange, uint64_t version) {
    exchange.offer(key_, version,
                   {.engine = &rig.engine(),
                    .address = at(rank).part,
                    .first = share(rank).begin,
                    .bytes = share(rank).bytes(),
                    .element = Element::float32});
  }
  // What was gathered is of no use any more: this version is, from now on.
  void renew(int rank, Rig& rig, uint64_t version) {
    Here& here = at(rank);
    here.source->renew(version);
    rig.engine().invalidate(here.whole);
    if (here.within_node != nullptr) here.within_node->renew(version, here.whole);
  }
  void free(int rank, Rig& rig) {
    rig.free(at(rank).whole);
    if (at(rank).part != nullptr) rig.free(at(rank).part);
  }

  std::byte* whole(int rank) { return at(rank).whole; }
  std::byte* part(int rank) { return at(rank).part; }
  Gather& source(int rank) { return *at(rank).source; }
  NodeShares::Kept* within_node(int rank) { return at(rank).within_node; }
  const Share& share(int rank) const { return shares_[static_cast<size_t>(rank)]; }

 private:
  struct Here {
    std::shared_ptr<Gather> source;
    NodeShares::Kept* within_node = nullptr;
    std::byte* whole = nullptr;
    std::byte* part = nullptr;
  };
  Here& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  const uint64_t key_;
  const Bytes bytes_;
  const std::vector<Share> shares_;
  std::vector<Here> ranks_;
};

}  // namespace bottomless
