#include "train/files/number_checks.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <system_error>

namespace bottomless::train {
namespace {

CLI::Validator number_check(const std::string& name, const std::string& wanted,
                            const std::function<bool(double)>& is_fine) {
  return CLI::Validator(
      [wanted, is_fine](std::string& text) {
        double number = 0;
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, number);
        const bool is_number = error == std::errc() && rest == end && std::isfinite(number);
        return is_number && is_fine(number) ? std::string() : "'" + text + "' is not " + wanted;
      },
      name);
}

std::string digits(double number) {
  std::ostringstream text;
  text.precision(10);
  text << number;
  return text.str();
}

}  // namespace

CLI::Validator number_from(double least) {
  return number_check("from " + digits(least), "a number from " + digits(least) + " on",
                      [least](double number) { return number >= least; });
}

CLI::Validator number_above(double bound) {
  return number_check("above " + digits(bound), "a number above " + digits(bound),
                      [bound](double number) { return number > bound; });
}

CLI::Validator number_between(double least, double most) {
  const std::string range = digits(least) + " to " + digits(most);
  return number_check(range, "a number from " + range,
                      [least, most](double number) { return number >= least && number <= most; });
}

}  // namespace bottomless::train
