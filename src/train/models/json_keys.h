// Reads the keys of one JSON object and remembers the first that is missing or wrong, so that many can be read in a row
// and the outcome asked for once. For sources only; other headers stay free of the library.
// Thread-safety: one thread at a time.
// Lifetime: the object must outlive it.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace bottomless::train {

class JsonKeys {
 public:
  // `where` begins every error: "read 'dir/config.json'".
  JsonKeys(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  bool has(const std::string& key) const;  // and it is not null
  bool is_null(const std::string& key) const { return object_.contains(key) && !has(key); }
  const nlohmann::json& at(const std::string& key) const { return object_.at(key); }

  // One of at least `least`; `otherwise` where there is none. Without `otherwise` it must be there.
  int64_t count(const std::string& key, std::optional<int64_t> otherwise = {}, int64_t least = 1);
  double number(const std::string& key, std::optional<double> otherwise, double least, double most);
  bool flag(const std::string& key, bool otherwise);
  std::string text(const std::string& key, std::optional<std::string> otherwise = {});
  std::vector<int64_t> numbers(const std::string& key);  // one or a list of them; none: empty

  void refuse(const std::string& key, const std::string& why);  // "'key' " + why
  const std::optional<Error>& wrong() const { return wrong_; }

 private:
  void missing(const std::string& key);

  const nlohmann::json& object_;
  const std::string where_;
  std::optional<Error> wrong_;
};

}  // namespace bottomless::train
