// Random histories of a heap against a simple model: what every address must show, and what the
// counters must say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memory/heap.h"
#include "support/process.h"
#include "support/random.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

struct Setting {
  Bytes limit;
  FrameSizes sizes;
  Poison poison;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << format_bytes(setting.limit) << " in frames of " << format_bytes(setting.sizes.large)
       << " and " << format_bytes(setting.sizes.small);
}

class HeapModel {
 public:
  HeapModel(const Setting& setting, Random& random) : setting_(setting), random_(random) {
    Result<std::unique_ptr<Heap>> heap =
        Heap::create({.limit = setting.limit, .frames = setting.sizes, .poison = setting.poison});
    EXPECT_TRUE(heap.ok()) << heap.error().message;
    heap_ = std::move(heap).value();
  }

  void step() {
    const uint64_t choice = random_.below(100);
    if (choice < 12) {
      reserve_or_reuse();
    } else if (choice < 45) {
      map_one();
    } else if (choice < 70) {
      unmap_one();
    } else if (choice < 80) {
      protect_one();
    } else if (choice < 96) {
      end_one();
    } else {
      heap_->set_budget(random_.below(setting_.limit + setting_.limit / 4));
    }
    check_counters();
  }

  // Every block of every range shows what it should.
  void check_everything() {
    for (const Range& range : ranges_) {
      for (const Block& block : range.blocks) check(block);
    }
  }
  uint64_t maps() const { return maps_; }
  uint64_t reused() const { return reused_; }

 private:
  struct Block {
    std::byte* at;
    Bytes bytes;
    Access access = Access::none;  // none: absent
    std::byte tag{};
  };
  struct Range {
    std::byte* at;
    Bytes bytes;
    std::vector<Block> blocks;
  };

  Range cut(std::byte* at, Bytes bytes, Access access) {
    Range range{at, bytes, {}};
    const Bytes block_bytes = 2 * setting_.sizes.large;
    for (Bytes offset = 0; offset < bytes; offset += block_bytes) {
      range.blocks.push_back({at + offset, std::min(block_bytes, bytes - offset), access});
    }
    return range;
  }

  void reserve_or_reuse() {
    const Bytes bytes = random_.between(1, setting_.limit / 3);
    const Bytes footprint = heap_->footprint(bytes);
    if (heap_->available() >= footprint) {
      if (std::byte* at = heap_->reuse(bytes)) {
        ++reused_;
        ASSERT_EQ(setting_.poison, Poison::off);
        ASSERT_EQ(retired_.count({at, footprint}), 1u) << "that range was never retired";
        retired_.erase({at, footprint});
        ranges_.push_back(cut(at, bytes, Access::write));
        for (Block& block : ranges_.back().blocks) fill(block);
        return;
      }
    }
    Result<std::byte*> at = heap_->reserve(bytes);
    ASSERT_TRUE(at.ok()) << at.error().message;
    for (const Range& other : ranges_) {
      ASSERT_TRUE(at.value() + footprint <= other.at ||
                  other.at + heap_->footprint(other.bytes) <= at.value());
    }
    // The heap stripped whatever was retired there, or it could not have given the addresses away.
    std::erase_if(retired_, [&](const auto& retired) {
      return at.value() < retired.first + retired.second && retired.first < at.value() + footprint;
    });
    ranges_.push_back(cut(at.value(), bytes, Access::none));
  }

  void fill(Block& block) {
    block.tag = static_cast<std::byte>(random_.between(1, 254));
    std::memset(block.at, static_cast<int>(block.tag), block.bytes);
  }

  void check(const Block& block) {
    ASSERT_EQ(is_readable(block.at), block.access != Access::none);
    ASSERT_EQ(is_readable(block.at + block.bytes - 1), block.access != Access::none);
    ASSERT_EQ(is_writable(block.at), block.access == Access::write);
    if (block.access == Access::none) return;
    for (Bytes i = 0; i < block.bytes; i += 509) ASSERT_EQ(block.at[i], block.tag) << i;
    ASSERT_EQ(block.at[block.bytes - 1], block.tag);
  }

  Block* some_block(bool absent) {
    if (ranges_.empty()) return nullptr;
    Block& block = random_.pick(random_.pick(ranges_).blocks);
    return (block.access == Access::none) == absent ? &block : nullptr;
  }

  void map_one() {
    Block* block = some_block(true);
    if (block == nullptr) return;
    const bool fits = heap_->footprint(block->bytes) <= heap_->available();
    Result<Frames> frames = heap_->take(block->bytes);
    ASSERT_EQ(frames.ok(), fits) << "take must succeed exactly when available() covers it";
    if (!fits) return;
    block->tag = static_cast<std::byte>(random_.between(1, 254));
    for (const auto piece : frames.value().pieces(block->bytes, setting_.sizes)) {
      if (setting_.poison == Poison::on) {
        const std::byte before = piece[piece.size() / 2];
        ASSERT_TRUE(before == std::byte{0} || before == std::byte{0xFF})
            << "old content shines through";
      }
      std::memset(piece.data(), static_cast<int>(block->tag), piece.size());
    }
    block->access = random_.one_in(2) ? Access::read : Access::write;
    heap_->map(block->at, std::move(frames).value(), block->access);
    ++maps_;
    check(*block);
  }

  void unmap_one() {
    Block* block = some_block(false);
    if (block == nullptr) return;
    check(*block);
    heap_->unmap(block->at, block->bytes);
    block->access = Access::none;
    check(*block);
  }

  void protect_one() {
    Block* block = some_block(false);
    if (block == nullptr) return;
    block->access = block->access == Access::read ? Access::write : Access::read;
    heap_->protect(block->at, block->bytes, block->access);
    check(*block);
    if (block->access == Access::write) fill(*block);
  }

  void end_one() {
    if (ranges_.empty()) return;
    const size_t index = random_.below(ranges_.size());
    Range& range = ranges_[index];
    const bool whole =
        std::none_of(range.blocks.begin(), range.blocks.end(),
                     [](const Block& block) { return block.access == Access::none; });
    for (Block& block : range.blocks) {
      check(block);
      if (whole) {
        heap_->protect(block.at, block.bytes, Access::write);
      } else if (block.access != Access::none) {
        heap_->unmap(block.at, block.bytes);
      }
    }
    if (whole) {
      heap_->retire(range.at, range.bytes);
      retired_.insert({range.at, heap_->footprint(range.bytes)});
    } else {
      heap_->release(range.at, range.bytes);
    }
    ranges_.erase(ranges_.begin() + static_cast<ptrdiff_t>(index));
  }

  void check_counters() {
    Bytes in_use = 0;
    for (const Range& range : ranges_) {
      for (const Block& block : range.blocks) {
        if (block.access != Access::none) in_use += heap_->footprint(block.bytes);
      }
    }
    ASSERT_EQ(heap_->in_use(), in_use);
    ASSERT_EQ(heap_->available(), heap_->budget() - std::min(in_use, heap_->budget()));
    ASSERT_LE(heap_->committed(), std::max(heap_->budget(), in_use)) << "the limit was exceeded";
  }

  const Setting setting_;
  Random& random_;
  std::unique_ptr<Heap> heap_;
  std::vector<Range> ranges_;
  std::set<std::pair<std::byte*, Bytes>> retired_;  // some of them may have been stripped since
  uint64_t maps_ = 0;
  uint64_t reused_ = 0;
};

class HeapProperty : public testing::TestWithParam<Setting> {};

TEST_P(HeapProperty, EveryAddressShowsItsContentAndTheBudgetHolds) {
  Random random(51);
  BOTTOMLESS_TRACE_SEED(random);
  HeapModel model(GetParam(), random);
  for (int step = 0; step < (kSanitizer ? 2500 : 8000); ++step) {
    model.step();
    if (HasFatalFailure()) FAIL() << "at step " << step;
    if (step % 500 == 0) model.check_everything();
    if (HasFatalFailure()) FAIL() << "at step " << step;
  }
  EXPECT_GT(model.maps(), 200u);
  if (GetParam().poison == Poison::off) {
    EXPECT_GT(model.reused(), 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, HeapProperty,
    testing::Values(Setting{1_MiB, {.large = 64_KiB, .small = 16_KiB}, Poison::off},
                    Setting{1_MiB, {.large = 64_KiB, .small = 16_KiB}, Poison::on},
                    Setting{512_KiB, {.large = 32_KiB, .small = 32_KiB}, Poison::off},
                    Setting{300_KiB, {.large = 64_KiB, .small = 4_KiB}, Poison::off},
                    Setting{8_MiB, {.large = 2_MiB, .small = 64_KiB}, Poison::off}),
    [](const auto& info) { return "Setting" + std::to_string(info.index); });

}  // namespace
}  // namespace bottomless
