#include "optim/array_set.h"

#include <cmath>
#include <cstring>

#include "optim/quantised.h"

namespace bottomless::optim {
namespace {

float random_value(Random& random) {
  if (random.one_in(50)) return 0;
  const float magnitude = random.one_in(50) ? 1e-40f
                          : random.one_in(50)
                              ? 1e25f
                              : std::exp2(static_cast<float>(random.below(30)) - 20);
  const auto fraction = static_cast<float>(random.below(1 << 24)) / (1 << 24);
  return (random.one_in(2) ? -1.0f : 1.0f) * magnitude * (1 + fraction);
}

void store_state(StateFormat format, void* to, size_t i, float value) {
  store_element(format == StateFormat::float32 ? Element::float32 : Element::bfloat16, to, i,
                value);
}

const char* name(Element element) {
  return element == Element::float32    ? "float32"
         : element == Element::bfloat16 ? "bfloat16"
                                        : "float16";
}

std::string name(StateKind kind) {
  if (kind.format == StateFormat::quantised8) return "quantised8";
  if (kind.format == StateFormat::float32) return "float32";
  return kind.rounding == Rounding::nearest ? "bfloat16" : "bfloat16 (stochastic)";
}

// Compares as float32 numbers where the bits differ.
template <class Load>
std::string compare(const char* what, const GuardedBytes& expected, const GuardedBytes& actual,
                    size_t count, Load load) {
  if (expected == actual) return "";
  for (size_t i = 0; i < count; ++i) {
    const float wanted = load(expected.data(), i), got = load(actual.data(), i);
    if (std::memcmp(&wanted, &got, sizeof(float)) == 0) continue;
    if (std::isnan(wanted) && std::isnan(got)) continue;
    return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got) +
           ", should be " + std::to_string(wanted);
  }
  return "";
}

std::string compare(const char* what, Element element, const GuardedBytes& expected,
                    const GuardedBytes& actual, size_t count) {
  return compare(what, expected, actual, count,
                 [element](const void* from, size_t i) { return load_element(element, from, i); });
}

std::string compare_scales(const char* what, const GuardedFloats& expected,
                           const GuardedFloats& actual) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &actual[i], sizeof(float)) == 0) continue;
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(actual[i]) +
           ", should be " + std::to_string(expected[i]);
  }
  return "";
}

}  // namespace

std::string describe(const ArrayFormats& formats) {
  return std::string(formats.has_master ? "float32 master, " : "") + name(formats.parameter) +
         " parameter, " + name(formats.gradient) + " gradient, " + name(formats.first) + " and " +
         name(formats.second) + " states";
}

ArraySet::ArraySet(const ArrayFormats& formats, size_t capacity, Random& random)
    : ArraySet(formats, std::vector<float>(capacity)) {
  for (size_t i = 0; i < capacity; ++i) {
    store_element(formats.parameter, parameter_.data(), i, random_value(random));
    if (formats.has_master)
      store_element(Element::float32, master_.data(), i, random_value(random));
    store_element(formats.gradient, gradient_.data(), i, random_value(random));
    const float moment = random_value(random);
    if (formats.first.format == StateFormat::quantised8) {
      first_[i] = static_cast<std::byte>(random.below(255) - 127);
      first_scales_[i] = std::fabs(random_value(random));
    } else {
      store_state(formats.first.format, first_.data(), i, moment);
    }
    if (formats.second.format == StateFormat::quantised8) {
      second_[i] = static_cast<std::byte>(random.below(256));
      second_scales_[i] = std::fabs(random_value(random));
    } else {
      store_state(formats.second.format, second_.data(), i, moment * moment);
    }
  }
}

ArraySet::ArraySet(const ArrayFormats& formats, const std::vector<float>& parameters)
    : formats_(formats),
      capacity_(parameters.size()),
      parameter_(capacity_ * bytes_of(formats.parameter)),
      master_(formats.has_master ? capacity_ * sizeof(float) : 0),
      gradient_(capacity_ * bytes_of(formats.gradient)),
      first_(capacity_ * bytes_of(formats.first.format)),
      second_(capacity_ * bytes_of(formats.second.format)),
      // One per element, so that they can begin anywhere, too.
      first_scales_(formats.first.format == StateFormat::quantised8 ? capacity_ : 0),
      second_scales_(formats.second.format == StateFormat::quantised8 ? capacity_ : 0) {
  for (size_t i = 0; i < capacity_; ++i) {
    store_element(formats.parameter, parameter_.data(), i, parameters[i]);
    if (formats.has_master) store_element(Element::float32, master_.data(), i, parameters[i]);
  }
}

Arrays ArraySet::arrays(size_t offset, size_t count) {
  const auto state = [offset](StateKind kind, GuardedBytes& values, GuardedFloats& scales) {
    return State{.values = values.data() + offset * bytes_of(kind.format),
                 .format = kind.format,
                 .scales = scales.empty() ? nullptr : scales.data() + offset,
                 .rounding = kind.rounding};
  };
  return {
      .parameter = parameter_.data() + offset * bytes_of(formats_.parameter),
      .parameter_type = formats_.parameter,
      .master = formats_.has_master ? reinterpret_cast<float*>(master_.data()) + offset : nullptr,
      .gradient = gradient_.data() + offset * bytes_of(formats_.gradient),
      .gradient_type = formats_.gradient,
      .first = state(formats_.first, first_, first_scales_),
      .second = state(formats_.second, second_, second_scales_),
      .count = count};
}

float ArraySet::parameter(size_t i) const {
  return load_element(formats_.parameter, parameter_.data(), i);
}

void ArraySet::set_gradient(size_t i, float value) {
  store_element(formats_.gradient, gradient_.data(), i, value);
}

std::string ArraySet::difference(const ArraySet& other) const {
  const auto compare_states = [this](const char* what, StateFormat format,
                                     const GuardedBytes& expected, const GuardedBytes& actual) {
    if (format != StateFormat::quantised8)
      return compare(what, format == StateFormat::float32 ? Element::float32 : Element::bfloat16,
                     expected, actual, capacity_);
    return compare(what, expected, actual, capacity_, [](const void* from, size_t i) {
      return static_cast<float>(static_cast<const int8_t*>(from)[i]);
    });
  };
  for (const std::string& found :
       {compare("parameter", formats_.parameter, other.parameter_, parameter_, capacity_),
        compare("master", Element::float32, other.master_, master_, capacity_),
        compare("gradient", formats_.gradient, other.gradient_, gradient_, capacity_),
        compare_states("first state", formats_.first.format, other.first_, first_),
        compare_states("second state", formats_.second.format, other.second_, second_),
        compare_scales("first scales", other.first_scales_, first_scales_),
        compare_scales("second scales", other.second_scales_, second_scales_)}) {
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace bottomless::optim
