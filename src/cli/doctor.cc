#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/probes.h"
#include "cli/verbs.h"

namespace bottomless::cli {
namespace {

struct DoctorOptions {
  std::vector<std::string> disk{"."};
  bool json = false;
};

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::good:
      return "good";
    case Verdict::could_be_better:
      return "could be better";
    case Verdict::missing:
      return "missing";
  }
  return "";
}

int doctor(const DoctorOptions& options) {
  Findings findings;
  const auto add = [&](Findings more) {
    for (Finding& finding : more) findings.push_back(std::move(finding));
  };
  add(probe_processor());
  add(probe_memory());
  add(probe_transfers());
  for (const std::string& directory : options.disk) add(probe_directory(directory));
  const Finding torch = probe_torch();
  add({torch});
  if (torch.verdict != Verdict::missing) add(probe_precision());
  bool complete = true;
  auto report = nlohmann::json::array();
  for (const Finding& finding : findings) {
    complete = complete && finding.verdict != Verdict::missing;
    report.push_back({{"topic", finding.topic},
                      {"verdict", name_of(finding.verdict)},
                      {"value", finding.value},
                      {"advice", finding.advice}});
    if (options.json) continue;
    const char* mark = finding.verdict == Verdict::good      ? "  ok"
                       : finding.verdict == Verdict::missing ? "  NO"
                                                             : "   ?";
    std::printf("%s  %-36s %s\n", mark, finding.topic.c_str(), finding.value.c_str());
    if (!finding.advice.empty()) std::printf("      %-36s -> %s\n", "", finding.advice.c_str());
  }
  if (options.json) {
    std::printf("%s\n",
                nlohmann::json{{"complete", complete}, {"findings", report}}.dump().c_str());
  } else {
    std::printf("%s\n", complete ? "This machine can run Bottomless."
                                 : "Something needed is missing: see NO above.");
  }
  return complete ? kDone : kFailed;
}

}  // namespace

std::function<int()> add_doctor(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  app.add_option("--disk", options->disk,
                 "Directories to look at, each measured for a second (default: the current one)")
      ->delimiter(',');
  app.add_flag("--json", options->json, "Print the findings as JSON");
  return [options] { return doctor(*options); };
}

}  // namespace bottomless::cli
