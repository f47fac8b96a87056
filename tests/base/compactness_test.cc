// How compact extents stay over long histories. Promised, for storages of the sizes that the engine cuts into blocks of
// 8 MiB, in each of the regimes below and once the file is warm: it is never longer than 1.1 times the most bytes that
// ever lived at once; and where what lives stays about the same, than 1.1 times what lives now.
// What no allocator of whole intervals can promise is the same for any history: a file full of odd sizes that are freed
// at random while larger ones come needs more, and so do blocks of 64 MiB of models that are exchanged piece by piece.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "base/best_fit.h"
#include "support/random.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

constexpr double kPromised = 1.1;

// In units of 4 KiB, as in a file.
constexpr uint64_t kMiB = 256;
constexpr uint64_t kGiB = 1024 * kMiB;
constexpr uint64_t kBlock = 8 * kMiB;

uint64_t scaled(uint64_t operations) { return kSanitizer ? operations / 8 : operations; }

struct Interval {
  uint64_t start;
  uint64_t size;
};
using Storage = std::vector<Interval>;  // its blocks

// Sizes of storages, each magnitude as likely as any other.
struct Mix {
  double least = kMiB / 8.0;
  double most = 512.0 * kMiB;
};

// A file whose extents come and go. It remembers the worst that it has seen since it was warm.
class File {
 public:
  File(uint64_t operations, const Random& random)
      : random_(random), stop_(scaled(operations)), warm_(stop_ / 20) {}

  bool running() const { return operations_ < stop_; }
  double progress() const { return static_cast<double>(operations_) / static_cast<double>(stop_); }
  uint64_t live() const { return extents_.used(); }
  Random& random() { return random_; }
  double of_most() const { return of_most_; }
  double of_live() const { return of_live_; }

  Interval place(uint64_t size) {
    const Interval placed{*extents_.allocate(size), size};
    ++operations_;
    most_live_ = std::max(most_live_, live());
    if (operations_ > warm_) of_most_ = std::max(of_most_, ratio_to(most_live_));
    return placed;
  }
  void remove(const Interval& interval) {
    extents_.free(interval.start, interval.size);
    ++operations_;
  }
  // Where what lives is about as much as ever.
  void compare_with_live() {
    if (operations_ > warm_) of_live_ = std::max(of_live_, ratio_to(live()));
  }

  uint64_t size_from(const Mix& mix) {
    const double uniform = static_cast<double>(random_.next() >> 11) * 0x1p-53;
    return static_cast<uint64_t>(mix.least * std::pow(mix.most / mix.least, uniform));
  }
  Storage store(uint64_t size) {
    Storage storage;
    for (; size > kBlock; size -= kBlock) storage.push_back(place(kBlock));
    storage.push_back(place(size));
    return storage;
  }
  void drop(const Storage& storage) {
    for (const Interval& block : storage) remove(block);
  }

 private:
  double ratio_to(uint64_t bytes) const {
    return static_cast<double>(extents_.high_water()) / static_cast<double>(bytes);
  }

  Random random_;
  BestFit extents_{1ull << 50};
  const uint64_t stop_;
  const uint64_t warm_;
  uint64_t operations_ = 0;
  uint64_t most_live_ = 0;
  double of_most_ = 0;
  double of_live_ = 0;
};

template <class T>
void shuffle(std::vector<T>& items, Random& random) {
  for (size_t left = items.size(); left > 1; --left) {
    std::swap(items[left - 1], items[random.below(left)]);
  }
}

template <class T>
T take(std::vector<T>& items, size_t index) {
  std::swap(items[index], items.back());
  T item = std::move(items.back());
  items.pop_back();
  return item;
}

// As much as fits lives; for a new storage, others chosen at random go.
void add_storage(File& file, std::vector<Storage>& storages, uint64_t size, uint64_t most) {
  while (file.live() + size > most) {
    file.drop(take(storages, file.random().below(storages.size())));
  }
  storages.push_back(file.store(size));
}

void replace_at_random(File& file, const Mix& mix, uint64_t most) {
  std::vector<Storage> storages;
  while (file.running()) {
    add_storage(file, storages, file.size_from(mix), most);
    file.compare_with_live();
  }
}
void any_sizes(File& file) { replace_at_random(file, {}, 64 * kGiB); }
// Nothing but tails: the sizes that fit each other's holes least.
void odd_sizes(File& file) { replace_at_random(file, {kMiB, kBlock}, 16 * kGiB); }
void hundred_thousand_extents(File& file) { replace_at_random(file, {kMiB, kBlock}, 320 * kGiB); }

// Single blocks lose their place and get another, as when a forked child keeps the old one.
void blocks_move(File& file) {
  std::vector<Storage> storages;
  while (file.running()) {
    add_storage(file, storages, file.size_from({}), 64 * kGiB);
    for (int i = 0; i < 4; ++i) {
      Interval& one = file.random().pick(file.random().pick(storages));
      Interval& other = file.random().pick(file.random().pick(storages));
      if (&one == &other) continue;
      file.remove(one);
      file.remove(other);
      other = file.place(other.size);
      one = file.place(one.size);
    }
    file.compare_with_live();
  }
}

// From storages of 128 KiB to 64 MiB to storages of 1 MiB to 512 MiB.
void mix_changes(File& file) {
  std::vector<Storage> storages;
  while (file.running()) {
    const double least = kMiB / 8.0 * std::exp2(3 * file.progress());
    add_storage(file, storages, file.size_from({least, 512 * least}), 64 * kGiB);
    file.compare_with_live();
  }
}

enum class Order { reverse, same, random };

// Steps of training: parameters stay; activations, a little different in each step, come and go, with gradients and
// temporaries between.
void train(File& file, Order order) {
  std::vector<Storage> parameters;
  while (file.live() < 32 * kGiB) parameters.push_back(file.store(file.size_from({})));
  std::vector<uint64_t> layers;
  for (uint64_t total = 0; total < 32 * kGiB; total += layers.back()) {
    layers.push_back(file.size_from({}));
  }
  while (file.running()) {
    std::vector<Storage> activations, gradients;
    for (const uint64_t size : layers) {
      activations.push_back(file.store(size - file.random().below(size / 2)));
      file.drop(file.store(size / 4));
    }
    if (order == Order::reverse) std::reverse(activations.begin(), activations.end());
    if (order == Order::random) shuffle(activations, file.random());
    for (const Storage& activation : activations) {
      gradients.push_back(file.store(file.random().pick(layers) / 8));
      file.drop(activation);
    }
    for (const Storage& gradient : gradients) file.drop(gradient);
  }
}
void train_in_reverse(File& file) { train(file, Order::reverse); }
void train_in_order(File& file) { train(file, Order::same); }
void train_at_random(File& file) { train(file, Order::random); }

// Models of few sizes each, as models are; one goes, in any order, before the next comes.
void models_in_turn(File& file) {
  while (file.running()) {
    std::vector<uint64_t> sizes;
    for (int i = 0; i < 8; ++i) sizes.push_back(file.size_from({}));
    std::vector<Storage> model;
    while (file.live() < 64 * kGiB && model.size() < 10000) {
      model.push_back(file.store(file.random().pick(sizes)));
    }
    shuffle(model, file.random());
    for (const Storage& storage : model) file.drop(storage);
  }
}

struct Regime {
  std::string name;
  void (*run)(File&);
  uint64_t operations;
};
void PrintTo(const Regime& regime, std::ostream* out) { *out << regime.name; }

class Compactness : public testing::TestWithParam<Regime> {};

TEST_P(Compactness, HoldsOverALongHistory) {
  Random random(31);
  BOTTOMLESS_TRACE_SEED(random);
  File file(GetParam().operations, random.fork(0));
  GetParam().run(file);
  std::printf("%s: %.3f of the most that lived, %.3f of what lives\n", GetParam().name.c_str(),
              file.of_most(), file.of_live());
  EXPECT_GE(file.of_most(), 1.0) << "nothing was measured";
  EXPECT_LE(file.of_most(), kPromised);
  EXPECT_LE(file.of_live(), kPromised);
}

INSTANTIATE_TEST_SUITE_P(Regimes, Compactness,
                         testing::Values(Regime{"AnySizes", any_sizes, 1'000'000},
                                         Regime{"OddSizes", odd_sizes, 1'000'000},
                                         Regime{"HundredThousandExtents", hundred_thousand_extents,
                                                300'000},
                                         Regime{"BlocksMove", blocks_move, 300'000},
                                         Regime{"MixChanges", mix_changes, 300'000},
                                         Regime{"TrainInReverse", train_in_reverse, 300'000},
                                         Regime{"TrainInOrder", train_in_order, 300'000},
                                         Regime{"TrainAtRandom", train_at_random, 300'000},
                                         Regime{"ModelsInTurn", models_in_turn, 300'000}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bottomless
