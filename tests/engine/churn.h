// A random program over an engine, and what every byte of it must be: each storage has a copy in an ordinary vector, and
// whatever the program reads is compared with it. Sizes are fractions of the limit, chosen such that every operation
// fits beside the pins and charges that the program holds, so every error is a failure.
// Thread-safety: none. Lifetime: the engine must outlive it.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "support/random.h"

namespace bottomless {

class Churn {
 public:
  Churn(Engine& engine, Bytes limit, Random random);
  ~Churn();

  // One step; failures are gtest's, fatal ones make failed() true.
  void step();
  bool failed() const { return testing::Test::HasFatalFailure(); }
  // Pins and compares every byte of every storage.
  void check_everything();

 private:
  struct Copy {
    std::byte* at = nullptr;
    std::vector<std::byte> expected;
    bool held = false;  // by the pins of holder_
    Bytes bytes() const { return expected.size(); }
  };
  struct Range {
    Copy* copy;
    Bytes offset;
    Bytes bytes;
    Access access;
    std::byte* at() const { return copy->at + offset; }
    const std::byte* expected() const { return copy->expected.data() + offset; }
  };

  void allocate();
  void free_one();
  void operate();
  void prefetch();
  void touch();
  void hold_or_release();
  void charge_or_discharge();
  void ask_for_too_much();

  Copy* add(std::byte* at, Bytes bytes);
  void remove(const Copy* copy);
  Range some_range(Copy& copy, Bytes most, Access access);
  void expect_equal(const Range& range);
  void overwrite(const Range& range);
  Bytes some_size();

  Engine& engine_;
  const Bytes limit_;
  Random random_;
  std::vector<std::unique_ptr<Copy>> copies_;
  Bytes total_ = 0;
  std::unique_ptr<Pins> holder_;
  std::vector<Bytes> charges_;
  Bytes charged_ = 0;
};

}  // namespace bottomless
