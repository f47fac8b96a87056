// Fails the n-th operation of the store for every n until none fires. Whatever is hit, the program hears of it where it
// needed the store, a second attempt works, and no byte is lost; and if the disk dies for good, what is resident stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 32_KiB;  // about nineteen fit
constexpr Bytes kStorage = 5 * kBlock - 3000;
constexpr size_t kStorages = 9;

struct Setting {
  std::string name;
  Operation operation;
  Code code;
  Eviction eviction;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class StoreFaults : public testing::TestWithParam<Setting> {
 protected:
  struct Kept {
    std::byte* at = nullptr;
    uint64_t key = 0;
  };

  RigOptions options(FailAt fail) {
    fail.operation = GetParam().operation;
    fail.code = GetParam().code;
    return {.limit = 768_KiB,
            .frames = {.large = kBlock, .small = 4_KiB},
            .eviction = GetParam().eviction,
            .store = {.fail = fail}};
  }

  // The program: more than the limit holds, written, read, changed, read backwards, half of it freed. `attempt` runs
  // one operation of it and says whether it took effect.
  void run(Rig& rig, const std::function<bool(const std::function<Result<void>()>&)>& attempt) {
    kept_.assign(kStorages, {});
    for (size_t i = 0; i < kStorages; ++i) {
      attempt([&, i]() -> Result<void> {
        Pins pins(rig.engine());
        Result<void*> at = rig.engine().allocate(kStorage, Kind::other, &pins, "a test");
        if (!at.ok()) return std::move(at).error();
        kept_[i] = {static_cast<std::byte*>(at.value()), 100 + i};
        write_pattern(kept_[i].at, kStorage, kept_[i].key);
        return {};
      });
    }
    for (size_t i = 0; i < kStorages; ++i) attempt([&, i] { return look(rig, kept_[i]); });
    for (size_t i = 0; i < kStorages; i += 2)
      attempt([&, i] { return change(rig, kept_[i], 200 + i); });
    attempt([&] { return rig.engine().charge(200_KiB, nullptr, "a test"); })
        ? rig.engine().discharge(200_KiB)
        : void();
    for (size_t i = kStorages; i-- > 0;) attempt([&, i] { return look(rig, kept_[i]); });
    for (size_t i = 0; i < kStorages; i += 3) attempt([&, i] { return touch(rig, kept_[i]); });
    for (size_t i = 0; i < kStorages; i += 2) drop(rig, kept_[i]);
    for (size_t i = 1; i < kStorages; i += 2)
      attempt([&, i] { return change(rig, kept_[i], 300 + i); });
  }

  Result<void> look(Rig& rig, const Kept& kept) {
    if (kept.at == nullptr) return {};
    Pins pins(rig.engine());
    Result<void> pinned = rig.try_pin(pins, kept.at, kStorage, Access::read);
    if (pinned.ok()) {
      EXPECT_TRUE(has_pattern(kept.at, kStorage, kept.key)) << "content was lost";
    }
    return pinned;
  }
  Result<void> change(Rig& rig, Kept& kept, uint64_t key) {
    if (kept.at == nullptr) return {};
    Pins pins(rig.engine());
    Result<void> pinned = rig.try_pin(pins, kept.at, kStorage, Access::write);
    if (!pinned.ok()) return pinned;
    EXPECT_TRUE(has_pattern(kept.at, kStorage, kept.key)) << "content was lost";
    write_pattern(kept.at, kStorage, kept.key = key);
    return {};
  }
  Result<void> touch(Rig& rig, const Kept& kept) {
    if (kept.at == nullptr) return {};
    Result<bool> touched = rig.engine().touch(kept.at, Access::write);
    if (!touched.ok()) return std::move(touched).error();
    return {};
  }
  void drop(Rig& rig, Kept& kept) {
    if (kept.at != nullptr) rig.free(kept.at);
    kept = {};
  }

  void expect_injected(const Error& error) {
    EXPECT_EQ(error.code, GetParam().code);
    EXPECT_NE(error.message.find("injected"), std::string::npos) << error.message;
  }
  // Every block that can be read without asking the engine holds what it should.
  void expect_resident_intact() {
    std::vector<std::byte> found(kBlock);
    for (const Kept& kept : kept_) {
      for (Bytes offset = 0; kept.at != nullptr && offset < kStorage; offset += kBlock) {
        const Bytes bytes = std::min(kBlock, kStorage - offset);
        if (!try_copy_out({found.data(), bytes}, kept.at + offset)) continue;
        ASSERT_TRUE(continues_pattern(found.data(), bytes, kept.key, offset))
            << "a resident block was lost";
      }
    }
  }

  std::vector<Kept> kept_;
};

TEST_P(StoreFaults, OnceAtEveryOperationUntilNoneFires) {
  bool fired = true;
  uint64_t runs = 0;
  for (uint64_t n = 0; fired; ++n, ++runs) {
    SCOPED_TRACE("failure at operation " + std::to_string(n));
    Rig rig(options({.n = n}));
    run(rig, [&](const auto& operation) {
      const Result<void> first = operation();
      if (first.ok()) return true;
      EXPECT_TRUE(rig.store().fired());
      expect_injected(first.error());
      const Result<void> second = operation();
      EXPECT_TRUE(second.ok()) << "the second attempt: " << second.error().message;
      return second.ok();
    });
    fired = rig.store().fired();
    if (HasFailure()) break;
  }
  EXPECT_GT(runs, 10u) << "the test tests nothing";
}

TEST_P(StoreFaults, FromEveryOperationOnNothingResidentIsLost) {
  bool fired = true;
  for (uint64_t n = 0; fired; n += kSanitizer ? 17 : 3) {
    SCOPED_TRACE("failures from operation " + std::to_string(n));
    Rig rig(options({.n = n, .from_then_on = true}));
    run(rig, [&](const auto& operation) {
      const Result<void> outcome = operation();
      if (outcome.ok()) return true;
      expect_injected(outcome.error());
      expect_resident_intact();
      return false;
    });
    fired = rig.store().fired();
    rig.store().fail(std::nullopt);  // the disk is back: so is everything
    rig.store().wait_until_idle();
    for (const Kept& kept : kept_) EXPECT_TRUE(look(rig, kept).ok());
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, StoreFaults,
    testing::Values(Setting{"Any", Operation::any, Code::io, Eviction::when_needed},
                    Setting{"AnyEager", Operation::any, Code::io, Eviction::eagerly},
                    Setting{"Write", Operation::write, Code::io, Eviction::when_needed},
                    Setting{"Read", Operation::read, Code::io, Eviction::when_needed},
                    Setting{"ReadEager", Operation::read, Code::io, Eviction::eagerly},
                    Setting{"Allocate", Operation::allocate, Code::no_space,
                            Eviction::when_needed}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bottomless
