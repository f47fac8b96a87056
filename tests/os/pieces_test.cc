#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "os/piecewise_call.h"
#include "support/random.h"

namespace bottomless {
namespace {

using Buffers = std::vector<std::vector<char>>;

std::vector<iovec> list_of(Buffers& buffers) {
  std::vector<iovec> list;
  for (std::vector<char>& buffer : buffers) list.push_back({buffer.data(), buffer.size()});
  return list;
}

std::string text_of(std::span<const iovec> list) {
  std::string text;
  for (const iovec& part : list) text.append(static_cast<const char*>(part.iov_base), part.iov_len);
  return text;
}

// Random buffers whose sum is `total`, empty ones among them.
Buffers cut(Random& random, size_t total) {
  Buffers buffers;
  char next = 0;
  for (size_t left = total; left > 0 || random.below(3) == 0;) {
    std::vector<char> buffer(random.below(left + 1));
    std::iota(buffer.begin(), buffer.end(), next);
    if (!buffer.empty()) next = static_cast<char>(buffer.back() + 1);
    left -= buffer.size();
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

constexpr auto kAlways = [](std::span<iovec>) { return true; };

TEST(Pieces, EveryByteGoesOnceAndInOrderAtSizesAroundEveryMultiple) {
  Random random(20261118);
  BOTTOMLESS_TRACE_SEED(random);
  for (const size_t most : {1, 2, 7, 16}) {
    for (size_t total = 0; total <= 4 * most + 1; ++total) {
      for (int turn = 0; turn < 8; ++turn) {
        Buffers buffers = cut(random, total);
        const std::vector<iovec> list = list_of(buffers);
        std::string seen;
        const ssize_t moved = move_in_pieces(
            list, most, Rest::proceed, kAlways, [&](std::span<iovec> piece, Bytes done) {
              EXPECT_EQ(done, seen.size());
              const std::string text = text_of(piece);
              EXPECT_LE(text.size(), most);
              EXPECT_EQ(text.empty(), total == 0) << total << " bytes, at most " << most;
              seen += text;
              return static_cast<ssize_t>(text.size());
            });
        EXPECT_EQ(moved, static_cast<ssize_t>(total));
        EXPECT_EQ(seen, text_of(list));
      }
    }
  }
}

TEST(Pieces, AShortResultOrAnErrorEndsItWithWhatWasMoved) {
  Random random(20261119);
  BOTTOMLESS_TRACE_SEED(random);
  for (int turn = 0; turn < 2000; ++turn) {
    const size_t total = 1 + random.below(64);
    const size_t most = 1 + random.below(24);
    const size_t there = random.below(total + 1);  // what the other side has
    const bool fails = random.below(2) == 0;       // instead of a result of zero
    Buffers buffers = cut(random, total);
    const std::vector<iovec> list = list_of(buffers);
    std::string seen;
    const ssize_t moved = move_in_pieces(
        list, most, Rest::proceed, kAlways, [&](std::span<iovec> piece, Bytes) -> ssize_t {
          const std::string text = text_of(piece).substr(0, there - seen.size());
          seen += text;
          return text.empty() && fails ? -1 : static_cast<ssize_t>(text.size());
        });
    const bool nothing = there == 0 && fails;
    EXPECT_EQ(moved, nothing ? -1 : static_cast<ssize_t>(there));
    EXPECT_EQ(seen, text_of(list).substr(0, there));
  }
}

TEST(Pieces, WithoutTheRestOnePieceIsTheAnswer) {
  std::vector<char> buffer(100);
  const iovec list{buffer.data(), buffer.size()};
  int calls = 0;
  const ssize_t moved =
      move_in_pieces({&list, 1}, 16, Rest::leave, kAlways, [&](std::span<iovec> piece, Bytes) {
        ++calls;
        return static_cast<ssize_t>(piece[0].iov_len);
      });
  EXPECT_EQ(moved, 16);
  EXPECT_EQ(calls, 1);
}

TEST(Pieces, WhatCannotBeHeldIsNotMoved) {
  std::vector<char> buffer(100);
  const iovec list{buffer.data(), buffer.size()};
  int holds = 0;
  const auto hold = [&](std::span<iovec>) { return ++holds < 3; };
  const ssize_t moved = move_in_pieces({&list, 1}, 16, Rest::proceed, hold, [](auto piece, Bytes) {
    return static_cast<ssize_t>(piece[0].iov_len);
  });
  EXPECT_EQ(moved, 32);
  holds = 9;
  EXPECT_EQ(move_in_pieces({&list, 1}, 16, Rest::proceed, hold, [](auto, Bytes) { return 1; }), -1);
}

// What the caller sees in errno is the call's own.
TEST(Pieces, ErrnoIsThatOfTheCall) {
  struct Held {
    ~Held() { errno = EINVAL; }
    explicit operator bool() const { return true; }
  };
  char byte = 0;
  const iovec list{&byte, 1};
  const ssize_t moved = move_in_pieces(
      {&list, 1}, 16, Rest::proceed, [](auto) { return Held(); },
      [](auto, Bytes) {
        errno = EAGAIN;
        return -1;
      });
  EXPECT_EQ(moved, -1);
  EXPECT_EQ(errno, EAGAIN);
}

}  // namespace
}  // namespace bottomless
