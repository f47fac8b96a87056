#include "memory/address_space.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "support/process.h"
#include "support/random.h"

namespace bottomless {
namespace {

AddressSpace reserved(Bytes bytes, Bytes alignment = 4_KiB) {
  Result<AddressSpace> space = AddressSpace::reserve(bytes, alignment);
  EXPECT_TRUE(space.ok()) << space.error().message;
  return std::move(space).value();
}

void create(AddressSpace& space, std::byte* at, Bytes bytes) {
  const Result<void> created = space.create(at, bytes, false);
  ASSERT_TRUE(created.ok()) << created.error().message;
}

TEST(AddressSpace, IsAlignedInaccessibleAndOurs) {
  const AddressSpace space = reserved(16_MiB, 2_MiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(space.base()) % 2_MiB, 0u);
  EXPECT_EQ(space.bytes(), 16_MiB);
  EXPECT_FALSE(is_readable(space.base()));
  EXPECT_FALSE(is_readable(space.base() + 16_MiB - 1));
  EXPECT_TRUE(space.contains(space.base()));
  EXPECT_TRUE(space.contains(space.base() + 16_MiB - 1));
  EXPECT_FALSE(space.contains(space.base() + 16_MiB));
  EXPECT_FALSE(space.contains(space.base() - 1));
}

TEST(AddressSpace, TooLargeAReservationIsAnErrorThatNamesTheLimit) {
  const Result<AddressSpace> space = AddressSpace::reserve(Bytes{1} << 60, 4_KiB);
  ASSERT_FALSE(space.ok());
  EXPECT_EQ(space.error().code, Code::no_memory);
  EXPECT_NE(space.error().message.find("ulimit -v"), std::string::npos) << space.error().message;
}

TEST(AddressSpace, FreshMemoryIsZeroAndWritable) {
  AddressSpace space = reserved(1_MiB);
  create(space, space.base() + 64_KiB, 64_KiB);
  EXPECT_TRUE(is_writable(space.base() + 64_KiB));
  EXPECT_EQ(space.base()[64_KiB], std::byte{0});
  EXPECT_FALSE(is_readable(space.base() + 64_KiB - 1));
  EXPECT_FALSE(is_readable(space.base() + 128_KiB));
}

TEST(AddressSpace, AMoveKeepsTheContentAndLeavesInaccessibleGround) {
  AddressSpace space = reserved(1_MiB);
  std::byte* from = space.base();
  std::byte* to = space.base() + 512_KiB;
  create(space, from, 64_KiB);
  std::memset(from, 0x5C, 64_KiB);
  space.move(from, to, 64_KiB);
  EXPECT_FALSE(is_readable(from));
  EXPECT_FALSE(is_readable(from + 64_KiB - 1));
  for (Bytes i = 0; i < 64_KiB; ++i) ASSERT_EQ(to[i], std::byte{0x5C}) << i;
  to[0] = std::byte{1};
  space.move(to, from, 64_KiB);
  EXPECT_EQ(from[0], std::byte{1});
  EXPECT_EQ(from[1], std::byte{0x5C});
}

TEST(AddressSpace, BlankingGivesTheMemoryBack) {
  AddressSpace space = reserved(1_MiB);
  create(space, space.base(), 64_KiB);
  std::memset(space.base(), 1, 64_KiB);
  space.blank(space.base(), 64_KiB);
  EXPECT_FALSE(is_readable(space.base()));
  create(space, space.base(), 64_KiB);
  EXPECT_EQ(space.base()[100], std::byte{0}) << "old content must not come back";
}

TEST(AddressSpace, ProtectionIsWhatTheAccessSays) {
  AddressSpace space = reserved(1_MiB);
  create(space, space.base(), 64_KiB);
  space.base()[7] = std::byte{9};
  space.protect(space.base(), 64_KiB, Access::read);
  EXPECT_TRUE(is_readable(space.base()));
  EXPECT_FALSE(is_writable(space.base()));
  space.protect(space.base(), 64_KiB, Access::none);
  EXPECT_FALSE(is_readable(space.base()));
  space.protect(space.base(), 64_KiB, Access::write);
  EXPECT_TRUE(is_writable(space.base()));
  EXPECT_EQ(space.base()[7], std::byte{9});
}

TEST(AddressSpace, AProtectedFrameMovesWithItsProtection) {
  AddressSpace space = reserved(1_MiB);
  create(space, space.base(), 64_KiB);
  space.base()[0] = std::byte{3};
  space.protect(space.base(), 64_KiB, Access::read);
  std::byte* to = space.base() + 256_KiB;
  space.move(space.base(), to, 64_KiB);
  EXPECT_TRUE(is_readable(to));
  EXPECT_FALSE(is_writable(to));
  EXPECT_EQ(to[0], std::byte{3});
}

TEST(AddressSpace, OwnershipMovesAndTheRangeIsUnmappedOnce) {
  AddressSpace first = reserved(1_MiB);
  const std::byte* base = first.base();
  AddressSpace second = std::move(first);
  EXPECT_EQ(second.base(), base);
  EXPECT_EQ(first.base(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_FALSE(first.contains(base));
  AddressSpace third = reserved(64_KiB);
  third = std::move(second);
  EXPECT_EQ(third.base(), base);
}

// Frames shuffled among many places: each keeps its own content, and the kernel's list of mappings
// stays short.
TEST(AddressSpace, ThousandsOfMovesKeepContentsAndTheCountOfMappings) {
  Random random(41);
  BOTTOMLESS_TRACE_SEED(random);
  constexpr size_t kFrames = 32;
  constexpr size_t kPlaces = 256;
  AddressSpace space = reserved(kPlaces * 16_KiB, 16_KiB);
  std::vector<int> frame_at(kPlaces, -1);
  for (size_t i = 0; i < kFrames; ++i) {
    create(space, space.base() + i * 16_KiB, 16_KiB);
    std::memset(space.base() + i * 16_KiB, static_cast<int>(i + 1), 16_KiB);
    frame_at[i] = static_cast<int>(i);
  }
  for (int step = 0; step < 5000; ++step) {
    const size_t from = random.below(kPlaces);
    const size_t to = random.below(kPlaces);
    if (frame_at[from] < 0 || frame_at[to] >= 0) continue;
    space.move(space.base() + from * 16_KiB, space.base() + to * 16_KiB, 16_KiB);
    std::swap(frame_at[from], frame_at[to]);
  }
  for (size_t place = 0; place < kPlaces; ++place) {
    const std::byte* at = space.base() + place * 16_KiB;
    ASSERT_EQ(is_readable(at), frame_at[place] >= 0);
    if (frame_at[place] < 0) continue;
    const auto expected = static_cast<std::byte>(frame_at[place] + 1);
    for (Bytes i = 0; i < 16_KiB; i += 512) ASSERT_EQ(at[i], expected);
  }
  EXPECT_LE(mappings_in(space.base(), space.bytes()), 2 * kFrames + 1)
      << "a frame and the ground behind it, at most";
}

}  // namespace
}  // namespace bottomless
