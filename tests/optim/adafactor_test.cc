// Every SIMD target of this processor against the reference, bit for bit, and the reference against the formulas.
#include "optim/adafactor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "optim/array_set.h"
#include "optim/reference.h"
#include "optim/targets.h"
#include "support/random.h"

namespace bottomless::optim {
namespace {

struct Shape {
  size_t matrices, rows, columns;
  bool is_vector = false;
  size_t count() const { return matrices * rows * columns; }
};

std::string describe(Shape shape) {
  if (shape.is_vector) return "vector of " + std::to_string(shape.columns);
  return std::to_string(shape.matrices) + " x " + std::to_string(shape.rows) + " x " +
         std::to_string(shape.columns);
}

struct Formats {
  Element parameter = Element::float32;
  bool has_master = false;
  Element gradient = Element::float32;
};

std::string describe(Formats formats) {
  return optim::describe(
      ArrayFormats{formats.parameter, formats.has_master, formats.gradient, {}, {}});
}

std::vector<Formats> all_formats() {
  std::vector<Formats> all;
  for (const Element parameter : kElements)
    for (const bool has_master : {false, true})
      for (const Element gradient : kElements) all.push_back({parameter, has_master, gradient});
  return all;
}

// Mostly of like magnitude, with zeros and small ones among them.
float random_value(Random& random) {
  if (random.one_in(20)) return 0;
  const float magnitude = std::exp2(-static_cast<float>(random.below(random.one_in(20) ? 30 : 4)));
  const auto fraction = static_cast<float>(random.below(1 << 24)) / (1 << 23) - 1;
  return magnitude * fraction;
}

// Copies are deep. One element more than the shape has shows whether an update writes outside of it.
class Tensors {
 public:
  Tensors(Shape shape, Formats formats, Random& random)
      : shape_(shape),
        formats_(formats),
        parameter_((shape.count() + 1) * bytes_of(formats.parameter)),
        master_(formats.has_master ? shape.count() + 1 : 0),
        rows_(shape.is_vector ? 0 : shape.matrices * shape.rows + 1),
        columns_(shape.matrices * shape.columns + 1) {
    for (size_t i = 0; i <= shape.count(); ++i) {
      const float value = random_value(random);
      if (formats.has_master) master_[i] = value;
      store_element(formats.parameter, parameter_.data(), i, value);
    }
    draw_gradient(random);
  }

  void draw_gradient(Random& random) {
    gradient_.resize((shape_.count() + 1) * bytes_of(formats_.gradient));
    for (size_t i = 0; i <= shape_.count(); ++i) set_gradient(i, random_value(random));
  }
  void set_gradient(size_t i, float value) {
    store_element(formats_.gradient, gradient_.data(), i, value);
  }
  void set_parameter(size_t i, float value) {
    store_element(formats_.parameter, parameter_.data(), i, value);
  }
  float parameter(size_t i) const { return load_element(formats_.parameter, parameter_.data(), i); }
  float gradient(size_t i) const { return load_element(formats_.gradient, gradient_.data(), i); }

  AdafactorArrays arrays() {
    return {.parameter = parameter_.data(),
            .parameter_type = formats_.parameter,
            .master = formats_.has_master ? master_.data() : nullptr,
            .gradient = gradient_.data(),
            .gradient_type = formats_.gradient,
            .row_variances = shape_.is_vector ? nullptr : rows_.data(),
            .column_variances = columns_.data(),
            .matrices = shape_.matrices,
            .rows = shape_.rows,
            .columns = shape_.columns};
  }

  // Empty if all bits are the same, except that any NaN is like any other.
  std::string difference(const Tensors& other) const {
    for (size_t i = 0; i <= shape_.count(); ++i)
      if (!same(parameter(i), other.parameter(i)))
        return at("parameter", i, parameter(i), other.parameter(i));
    for (const auto& [name, mine, theirs] :
         {std::tuple("master", &master_, &other.master_),
          std::tuple("row variance", &rows_, &other.rows_),
          std::tuple("column variance", &columns_, &other.columns_)})
      for (size_t i = 0; i < mine->size(); ++i)
        if (!same((*mine)[i], (*theirs)[i])) return at(name, i, (*mine)[i], (*theirs)[i]);
    return "";
  }

 private:
  static bool same(float a, float b) {
    return std::memcmp(&a, &b, sizeof(float)) == 0 || (std::isnan(a) && std::isnan(b));
  }
  static std::string at(const char* what, size_t i, float got, float wanted) {
    return std::string(what) + " " + std::to_string(i) + " is " + std::to_string(got) +
           ", should be " + std::to_string(wanted);
  }

  Shape shape_;
  Formats formats_;
  std::vector<std::byte> parameter_, gradient_;
  std::vector<float> master_, rows_, columns_;
};

AdafactorRule random_rule(Random& random) {
  return {.rate = random.one_in(2) ? 1e-2 : 1.5,
          .epsilon1 = random.one_in(3)   ? 0
                      : random.one_in(2) ? 1e-3
                                         : 0x1p-23,
          .clip = random.one_in(2) ? 1 : 1.3,
          .weight_decay = random.one_in(2) ? 0 : 0.1,
          .maximize = random.one_in(2),
          .gradient_factor = random.one_in(2) ? 1.0f : 0.3f};
}

void expect_bits_of_reference(Shape shape, Formats formats, Random& random) {
  Tensors expected(shape, formats, random);
  AdafactorRule rule = random_rule(random);
  for (rule.step = 1; rule.step <= 3; ++rule.step) {
    expected.draw_gradient(random);
    const Tensors before = expected;
    reference::update(rule, expected.arrays());
    for (const Target target : targets()) {
      const OnlyTarget only(target);
      Tensors actual = before;
      update(rule, actual.arrays());
      ASSERT_EQ(actual.difference(expected), "") << target.name << ", " << describe(shape) << ", "
                                                 << describe(formats) << ", step " << rule.step;
    }
  }
}

TEST(Adafactor, HasTheBitsOfTheReferenceForAllLengthsOfRows) {
  Random random(301);
  BOTTOMLESS_TRACE_SEED(random);
  for (const Formats formats : all_formats()) {
    for (size_t columns = 0; columns <= 70; ++columns) {
      for (const Shape shape : {Shape{1, 1, columns, true}, Shape{1, 1, columns},
                                Shape{1, 3, columns}, Shape{2, 5, columns}}) {
        expect_bits_of_reference(shape, formats, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Adafactor, HasTheBitsOfTheReferenceWhereTilesEnd) {
  Random random(302);
  BOTTOMLESS_TRACE_SEED(random);
  using enum Element;
  for (const Formats formats :
       {Formats{float32, false, float32}, Formats{bfloat16, true, bfloat16},
        Formats{float16, true, float32}, Formats{float16, false, float16}}) {
    for (const Shape shape :
         {Shape{1, 256, 17}, Shape{1, 257, 17}, Shape{2, 515, 3}, Shape{1, 3, 1024},
          Shape{1, 3, 1025}, Shape{2, 2, 2100}, Shape{2, 300, 1030}, Shape{700, 3, 3},
          Shape{9000, 3, 3}, Shape{1, 0, 5}, Shape{0, 4, 5}, Shape{1, 1, 1023, true},
          Shape{1, 1, 1025, true}, Shape{1, 1, 70001, true}}) {
      expect_bits_of_reference(shape, formats, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Adafactor, HasTheBitsOfTheReferenceWhateverTheGradients) {
  Random random(303);
  BOTTOMLESS_TRACE_SEED(random);
  const std::vector<float> values{0,
                                  1e-45f,
                                  1e-40f,
                                  1e-30f,
                                  1e25f,
                                  3e38f,
                                  std::numeric_limits<float>::infinity(),
                                  -1e-20f,
                                  std::numeric_limits<float>::quiet_NaN()};
  for (const Formats formats : all_formats()) {
    for (size_t kinds = 1; kinds <= values.size(); ++kinds) {
      for (const Shape shape : {Shape{1, 1, 37, true}, Shape{1, 4, 19}, Shape{3, 2, 16}}) {
        Tensors before(shape, formats, random);
        for (size_t i = 0; i < shape.count(); ++i)
          before.set_gradient(i, values[random.below(kinds)]);
        const AdafactorRule rule = random_rule(random);
        Tensors expected = before;
        reference::update(rule, expected.arrays());
        for (const Target target : targets()) {
          const OnlyTarget only(target);
          Tensors actual = before;
          update(rule, actual.arrays());
          ASSERT_EQ(actual.difference(expected), "")
              << target.name << ", " << kinds << " kinds, " << describe(shape) << ", "
              << describe(formats);
        }
      }
    }
  }
}

TEST(Adafactor, HasTheSameBitsInWhateverOrderItsPartsRun) {
  Random random(304);
  BOTTOMLESS_TRACE_SEED(random);
  for (const Shape shape :
       {Shape{1, 1500, 70}, Shape{2, 300, 2500}, Shape{9000, 3, 3}, Shape{1, 1, 300000, true}}) {
    const Tensors before(shape, {Element::bfloat16, true, Element::bfloat16}, random);
    const AdafactorRule rule = random_rule(random);
    Tensors expected = before, shuffled = before, at_once = before;
    update(rule, expected.arrays());
    size_t most = 0;
    update(rule, shuffled.arrays(), [&](size_t count, const std::function<void(size_t)>& function) {
      most = std::max(most, count);
      std::vector<size_t> order(count);
      std::iota(order.begin(), order.end(), size_t{0});
      for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
      for (const size_t i : order) function(i);
    });
    update(rule, at_once.arrays(), [](size_t count, const std::function<void(size_t)>& function) {
      std::vector<std::jthread> threads;
      for (size_t first = 0; first < 3; ++first)
        threads.emplace_back([=, &function] {
          for (size_t i = first; i < count; i += 3) function(i);
        });
    });
    EXPECT_GT(most, 1u) << describe(shape);
    EXPECT_EQ(shuffled.difference(expected), "") << describe(shape);
    EXPECT_EQ(at_once.difference(expected), "") << describe(shape);
  }
}

// In double, as the formulas of torch's documentation are written.
class Formula {
 public:
  Formula(Shape shape, const Tensors& start)
      : shape_(shape),
        rows_(shape.matrices * shape.rows),
        columns_(shape.matrices * shape.columns) {
    for (size_t i = 0; i < shape.count(); ++i) values_.push_back(start.parameter(i));
  }

  void step(const AdafactorRule& rule, const Tensors& from) {
    const auto count = static_cast<double>(shape_.count());
    const auto rows = static_cast<double>(shape_.rows),
               columns = static_cast<double>(shape_.columns);
    const double weight = std::pow(static_cast<double>(rule.step), rule.beta2_decay);
    double squares = 0;
    for (const double value : values_) squares += value * value;
    const double rate = std::max(rule.epsilon2, std::sqrt(squares / count)) *
                        std::min(rule.rate, 1 / std::sqrt(static_cast<double>(rule.step)));
    for (double& each : rows_) each *= 1 - weight;
    for (double& each : columns_) each *= 1 - weight;
    std::vector<double> update(shape_.count());
    for (size_t i = 0; i < update.size(); ++i) {
      update[i] =
          static_cast<double>(from.gradient(i)) * rule.gradient_factor * (rule.maximize ? -1 : 1);
      rows_[i / shape_.columns] += weight * update[i] * update[i] / columns;
      columns_[column_of(i)] += weight * update[i] * update[i] / rows;
    }
    double update_squares = 0;
    for (size_t i = 0; i < update.size(); ++i) {
      const size_t matrix = i / shape_.columns / shape_.rows;
      double mean = 0;
      for (size_t row = 0; row < shape_.rows; ++row)
        mean += rows_[matrix * shape_.rows + row] / rows;
      const double variance =
          shape_.is_vector
              ? columns_[column_of(i)]
              : rows_[i / shape_.columns] * columns_[column_of(i)] / std::max(mean, rule.epsilon1);
      update[i] /= std::max(std::sqrt(variance), rule.epsilon1);
      update_squares += update[i] * update[i];
    }
    const double excess = std::max(1.0, std::sqrt(update_squares / count) / rule.clip);
    for (size_t i = 0; i < update.size(); ++i)
      values_[i] = values_[i] * (1 - rule.rate * rule.weight_decay) - rate / excess * update[i];
  }

  double value(size_t i) const { return values_[i]; }

 private:
  size_t column_of(size_t i) const {
    return i / shape_.columns / shape_.rows * shape_.columns + i % shape_.columns;
  }

  Shape shape_;
  std::vector<double> values_, rows_, columns_;
};

TEST(Adafactor, FollowsTheFormula) {
  Random random(305);
  BOTTOMLESS_TRACE_SEED(random);
  for (const Shape shape : {Shape{1, 1, 40, true}, Shape{1, 20, 30}, Shape{3, 7, 5},
                            Shape{1, 40, 1}, Shape{1, 1, 40}}) {
    Tensors tensors(shape, {}, random);
    Formula formula(shape, tensors);
    AdafactorRule rule{
        .rate = 0.05, .epsilon1 = 1e-3, .clip = 1.1, .weight_decay = 0.01, .gradient_factor = 0.7f};
    for (rule.step = 1; rule.step <= 20; ++rule.step) {
      tensors.draw_gradient(random);
      formula.step(rule, tensors);
      update(rule, tensors.arrays());
    }
    for (size_t i = 0; i < shape.count(); ++i)
      ASSERT_NEAR(tensors.parameter(i), formula.value(i), 1e-6)
          << describe(shape) << ", element " << i;
  }
}

TEST(Adafactor, LeavesWhatNeverHadAGradientWithoutAnEpsilon) {
  Random random(306);
  BOTTOMLESS_TRACE_SEED(random);
  for (const Shape shape : {Shape{1, 1, 5, true}, Shape{1, 3, 4}}) {
    Tensors tensors(shape, {}, random);
    for (size_t i = 0; i < shape.count(); ++i) tensors.set_gradient(i, 0);
    const Tensors before = tensors;
    update({.epsilon1 = 0}, tensors.arrays());
    EXPECT_EQ(tensors.difference(before), "");
  }
}

}  // namespace
}  // namespace bottomless::optim
