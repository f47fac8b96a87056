#include "report/estimate_table.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/at_least.h"
#include "base/status_line.h"
#include "report/print.h"

namespace bottomless {
namespace {

constexpr double kTerabyte = 1e12;

std::string row(const char* name, const KindEstimate& kind) {
  return print("%-12s %12s %12s %12s %12s\n", name, format_bytes(kind.in_memory).c_str(),
               format_bytes(kind.on_disk).c_str(), format_bytes(kind.read).c_str(),
               format_bytes(kind.written).c_str());
}

// Short durations with more digits than people need for long ones.
std::string step_time(double seconds) {
  return seconds < 60 ? print("%.2f s", seconds) : duration_text(seconds);
}

// "10.40 s", or "10.40 s to 12.10 s" where the speed of the processor is not known better.
std::string computing_time(const RunEstimate& estimate) {
  const std::string least = step_time(estimate.computing_seconds),
                    most = step_time(estimate.computing_seconds_most);
  return most == least || estimate.computing_seconds_most <= estimate.computing_seconds
             ? least
             : least + " to " + most;
}

std::string endurance(const RunEstimate& estimate, const RunMachine& machine) {
  if (estimate.written_per_hour <= 0) return "nothing in a step";
  std::string text = format_bytes(static_cast<Bytes>(estimate.written_per_hour)) + " an hour";
  const double days = estimate.days_of_drive;
  const std::string span = days > 3650  ? "more than ten years"
                           : days > 730 ? print("%.0f years", days / 365)
                           : days > 2   ? print("%.0f days", days)
                                        : print("%.0f hours", days * 24);
  return text + print("; endurance: a %.0f TBW drive lasts %s at this rate",
                      machine.endurance_bytes / kTerabyte, span.c_str());
}

std::string received(const RunEstimate& estimate, const RunMachine& machine) {
  std::string text = format_bytes(estimate.received) + " received by each rank in a step";
  if (machine.network_rate <= 0) return text;
  return text + ", " + step_time(estimate.network_seconds) + " at " +
         format_bytes(static_cast<Bytes>(machine.network_rate)) + " a second";
}

std::string checkpoints(const RunEstimate& estimate, const RunMachine& machine) {
  std::string text = format_bytes(estimate.checkpoints()) + " for the last two and the next one; " +
                     format_bytes(machine.checkpoints_free) + " are free there";
  if (estimate.can_save(machine)) return text;
  return text + (machine.checkpoints_share_disk ? ", for the disk's part, too" : "") +
         ",\n             too little: make room, or have one at the end only (--save-minutes 0), " +
         format_bytes(estimate.checkpoint);
}

}  // namespace

std::string verdict_of(const RunEstimate& estimate, const RunShape& shape,
                       const RunMachine& machine) {
  switch (estimate.verdict) {
    case RunVerdict::too_little_memory: {
      // What the runtime takes for itself, where it is known, is that of the limit as it is; under a higher one it is a little more.
      const Bytes growth =
          shape.own_memory == 0
              ? 0
              : shape.own_memory / 8 + (estimate.least_memory - machine.memory_limit) / 32;
      RunShape shorter = shape;
      shorter.rows = 1;
      const Bytes with_one_row = bottomless::estimate(shorter, machine).least_memory;
      std::string advice = "raise the memory limit";
      if (shape.rows > 1 && with_one_row <= machine.memory_limit) {
        advice += ", or take fewer rows at a time: one needs " + format_at_least(with_one_row);
      } else if (shape.length > 1) {
        advice += ", or take shorter rows";
      }
      return "This cannot run: the working set of one layer needs a limit of " +
             format_at_least(estimate.least_memory + growth) + ", and the limit is " +
             format_bytes(machine.memory_limit) + "; " + advice + ".";
    }
    case RunVerdict::too_little_disk:
      return "This cannot run: " + format_bytes(estimate.all.on_disk) +
             " have to be on the disk, and " + format_bytes(machine.disk_free) +
             " are free; make room, name more disks, keep narrower states, or train adapters.";
    case RunVerdict::fits:
      return "Everything fits into memory: nothing moves in a step.";
    case RunVerdict::computing_limits:
      return print("Limited by computing: transfers take %.0f %% of a step and hide behind it.",
                   100 * std::max(estimate.disk_seconds, estimate.network_seconds) /
                       std::max(estimate.computing_seconds, 1e-12));
    case RunVerdict::network_limits:
      return print(
          "Limited by the network: computing takes %.0f %% of a step; %.1f times as many tokens in "
          "a step would take as long, if memory holds them.",
          100 * estimate.computing_seconds / estimate.network_seconds,
          estimate.network_seconds / std::max(estimate.computing_seconds, 1e-12));
    case RunVerdict::disk_limits:
      return print(
          "Limited by the disk: computing takes %.0f %% of a step; %.1f times as many tokens in a "
          "step would take as long, if memory holds them.",
          100 * estimate.computing_seconds / estimate.disk_seconds,
          estimate.disk_seconds / std::max(estimate.computing_seconds, 1e-12));
  }
  return "";
}

std::string table_of(const RunEstimate& estimate, const RunShape& shape,
                     const RunMachine& machine) {
  std::string text = print("%-12s %12s %12s %12s %12s\n", "", "in memory", "on the disk",
                           "read a step", "written");
  text += row("parameters", estimate.of(Kind::parameter));
  text += row("gradients", estimate.of(Kind::gradient));
  text += row("states", estimate.of(Kind::state));
  text += row("activations", estimate.of(Kind::activation));
  text += row("working set", estimate.of(Kind::other));
  text += row("all", estimate.all);
  text += print("%-12s %12s %12s\n\n", "available", format_bytes(machine.memory_limit).c_str(),
                format_bytes(machine.disk_free).c_str());
  if (estimate.can_run()) {
    text +=
        print("a step       %s at best: computing %s, the disk %s; %.0f tokens, %.*f a second\n",
              step_time(estimate.seconds).c_str(), computing_time(estimate).c_str(),
              step_time(estimate.disk_seconds).c_str(), shape.tokens(),
              estimate.tokens_per_second < 100 ? 1 : 0, estimate.tokens_per_second);
    if (shape.ranks > 1) text += "network      " + received(estimate, machine) + "\n";
    if (shape.saved > 0) text += "checkpoints  " + checkpoints(estimate, machine) + "\n";
    text += "written      " + endurance(estimate, machine) + "\n\n";
  }
  return text + verdict_of(estimate, shape, machine) + "\n";
}

std::string json_of(const RunEstimate& estimate) {
  const auto of = [](const KindEstimate& kind) {
    return nlohmann::json{{"in_memory_bytes", kind.in_memory},
                          {"on_disk_bytes", kind.on_disk},
                          {"read_bytes", kind.read},
                          {"written_bytes", kind.written}};
  };
  nlohmann::json json{{"can_run", estimate.can_run()},
                      {"least_memory_bytes", estimate.least_memory},
                      {"step_seconds", estimate.seconds},
                      {"computing_seconds", estimate.computing_seconds},
                      {"computing_seconds_most", estimate.computing_seconds_most},
                      {"disk_seconds", estimate.disk_seconds},
                      {"received_bytes", estimate.received},
                      {"checkpoint_bytes", estimate.checkpoint},
                      {"network_seconds", estimate.network_seconds},
                      {"tokens_per_second", estimate.tokens_per_second},
                      {"written_bytes_per_hour", estimate.written_per_hour},
                      {"all", of(estimate.all)}};
  if (std::isfinite(estimate.days_of_drive)) json["days_of_drive"] = estimate.days_of_drive;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    json["kinds"][std::string(kKindNames[kind])] = of(estimate.kinds[kind]);
  }
  return json.dump();
}

}  // namespace bottomless
