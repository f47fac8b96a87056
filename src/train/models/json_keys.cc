#include "train/models/json_keys.h"

namespace bottomless::train {

bool JsonKeys::has(const std::string& key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

void JsonKeys::refuse(const std::string& key, const std::string& why) {
  if (!wrong_) wrong_ = Error{Code::invalid_argument, where_ + ": '" + key + "' " + why};
}

void JsonKeys::missing(const std::string& key) {
  refuse(key, "is missing; take the config.json that belongs to the model");
}

int64_t JsonKeys::count(const std::string& key, std::optional<int64_t> otherwise, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 31;  // products of two still fit
  if (!has(key)) {
    if (!otherwise) missing(key);
    return otherwise.value_or(least);
  }
  const auto& value = at(key);
  if (value.is_number_integer() && value.get<int64_t>() >= least && value.get<int64_t>() <= kMost)
    return value.get<int64_t>();
  refuse(key,
         "is " + value.dump() + "; a whole number from " + std::to_string(least) + " is supported");
  return least;
}

double JsonKeys::number(const std::string& key, std::optional<double> otherwise, double least,
                        double most) {
  if (!has(key)) {
    if (!otherwise) missing(key);
    return otherwise.value_or(least);
  }
  const auto& value = at(key);
  if (value.is_number() && value.get<double>() >= least && value.get<double>() <= most)
    return value.get<double>();
  refuse(key, "is " + value.dump() + "; a number from " + nlohmann::json(least).dump() + " to " +
                  nlohmann::json(most).dump() + " is supported");
  return least;
}

bool JsonKeys::flag(const std::string& key, bool otherwise) {
  if (!has(key)) return otherwise;
  if (at(key).is_boolean()) return at(key).get<bool>();
  refuse(key, "is " + at(key).dump() + "; true and false are supported");
  return otherwise;
}

std::string JsonKeys::text(const std::string& key, std::optional<std::string> otherwise) {
  if (!has(key)) {
    if (!otherwise) missing(key);
    return otherwise.value_or("");
  }
  if (at(key).is_string()) return at(key).get<std::string>();
  refuse(key, "is " + at(key).dump() + "; a string is supported");
  return otherwise.value_or("");
}

std::vector<int64_t> JsonKeys::numbers(const std::string& key) {
  if (!has(key)) return {};
  const auto& value = at(key);
  std::vector<int64_t> found;
  for (const auto& item : value.is_array() ? value : nlohmann::json::array({value})) {
    if (!item.is_number_integer()) {
      refuse(key, "is " + value.dump() + "; a whole number or a list of them is supported");
      return {};
    }
    found.push_back(item.get<int64_t>());
  }
  return found;
}

}  // namespace bottomless::train
