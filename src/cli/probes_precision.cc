#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/child.h"
#include "cli/probes.h"
#include "cli/python.h"

namespace bottomless::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTopic = "compute precision";
constexpr std::chrono::seconds kDeadline{60};  // most of it is for loading torch from a cold disk

Finding not_measured(const std::string& why, const fs::path& python) {
  if (why.find("No module named") != std::string::npos) {
    return {kTopic, Verdict::could_be_better,
            "not measured: the package bottomless is not in " + python.string(),
            "install it there: it is the Python that programs are started with"};
  }
  return {kTopic, Verdict::could_be_better, "not measured: " + why,
          "see " + python.string() + " -m bottomless.precision"};
}

// The last line that can be read as JSON: libraries may print warnings around it.
nlohmann::json object_in(const std::string& text) {
  for (size_t end = text.size(); end != 0;) {
    const size_t begin = text.rfind('\n', end - 1) + 1;  // npos + 1 is 0
    auto object = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
    if (object.is_object()) return object;
    end = begin == 0 ? 0 : begin - 1;
  }
  return {};
}

std::string factor_text(double factor) {
  char number[32];
  std::snprintf(number, sizeof number, "%.2g", factor);
  return number;
}

// "bfloat16 1.9 to 2.1 x float32, float16 0.4 x".
std::string speeds(const nlohmann::json& speed) {
  std::string text;
  for (const auto& [name, range] : speed.items()) {
    const std::string low = factor_text(range.at(0).get<double>()),
                      high = factor_text(range.at(1).get<double>());
    const char* end = text.empty() ? " x float32" : " x";
    if (!text.empty()) text += ", ";
    text += name;
    text += " ";
    text += low;
    if (high != low) text += " to " + high;
    text += end;
  }
  return text.empty() ? "neither bfloat16 nor float16 here" : text;
}

}  // namespace

Finding judge_precision(const Result<std::string>& said, const fs::path& python) {
  if (!said.ok()) return not_measured(said.error().message, python);
  try {
    const nlohmann::json report = object_in(said.value());
    const auto chosen = report.at("chosen").get<std::string>();
    const auto set_by = report.at("set_by").get<std::string>();
    std::string value = speeds(report.at("speed")) + ": " + chosen + " is chosen";
    if (set_by != "measurement") {
      value += " by " + set_by;
    } else if (chosen == "float32") {
      value += ", as nothing is clearly faster";
    }
    if (!report.at("quiet").get<bool>())
      value += "; measured while others used the processor, so it will be once more";
    return {kTopic, Verdict::good, value, ""};
  } catch (const nlohmann::json::exception&) {
    return not_measured("it did not answer as expected", python);
  }
}

Findings probe_precision() {
  const auto python = find_python();
  if (!python) return {};
  const Result<std::string> said = output_of(
      Child{.command = {python->string(), "-m", "bottomless.precision"}, .deadline = kDeadline});
  return {judge_precision(said, *python)};
}

}  // namespace bottomless::cli
