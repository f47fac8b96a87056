#include "plan/run_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace bottomless {
namespace {

constexpr double kForBlocks = 0.9;  // of the limit; the rest is for transfers under way

double number(uint64_t count) { return static_cast<double>(count); }
Bytes whole(double bytes) { return static_cast<Bytes>(std::llround(bytes)); }

// How often a byte that is on the disk moves in a step.
struct Moves {
  double read = 0, written = 0;
};

Moves moves_of(Kind kind, const RunShape& shape) {
  switch (kind) {
    case Kind::
        parameter:  // to the forward pass, where a waiting update joins, and to the backward pass
      return {2, shape.parameters == 0 ? 0 : number(shape.trained) / number(shape.parameters)};
    case Kind::gradient:
    case Kind::state:
    case Kind::activation:
      return {1, 1};
    default:
      return {};
  }
}

double bytes_of(Kind kind, const RunShape& shape) {
  switch (kind) {
    case Kind::parameter:
      return number(shape.parameters - shape.small) * shape.parameter_bytes * shape.parameter_share;
    case Kind::gradient:
      return shape.gradients == Gradients::kept ? number(shape.trained - shape.small_trained) *
                                                      shape.gradient_bytes * shape.gradient_share
                                                : 0;
    case Kind::state:
      return number(shape.trained - shape.small_trained) * shape.state_bytes * shape.state_share;
    case Kind::activation:
      return shape.tokens() * number(shape.layers) * number(shape.hidden) * shape.kept_per_unit *
             shape.activation_bytes;
    default:
      return 0;
  }
}

double staying_bytes(const RunShape& shape) {
  return number(shape.own_memory) + number(shape.small) * shape.parameter_bytes +
         number(shape.small_trained) * (shape.gradient_bytes + shape.state_bytes);
}

// What has to be in memory at once: what never leaves it, the largest layer with its gradient, and what one micro-batch makes in a layer or, if
// that is more, at the end, where there is a score for each word and a gradient of it.
double working_bytes(const RunShape& shape) {
  const double tokens = number(shape.rows) * number(shape.length);
  const double layer = number(shape.largest_layer) *
                       (shape.parameter_bytes + (shape.trained > 0 ? shape.gradient_bytes : 0));
  const double inside = number(shape.hidden) * shape.kept_per_unit;
  const double scores = 2 * number(shape.vocabulary);
  return staying_bytes(shape) + layer + tokens * std::max(inside, scores) * shape.activation_bytes;
}

// With each weight that takes part: two operations a token forward, two for the gradient of the input, two for that
// of the weight where it is trained.
double products(const RunShape& shape) {
  return shape.tokens() * (4 * number(shape.parameters - shape.idle) +
                           2 * number(shape.trained - shape.idle_trained));
}

// The same three times for scores and values over the length of a row.
double attention(const RunShape& shape) {
  return shape.tokens() * 12 * number(shape.layers) * number(shape.hidden) * number(shape.length);
}

// Of every gathered parameter a rank has one share itself, and of every gradient of its shares one term. Parameters come once
// after each update; those that are given up come once more for the backward pass, and frozen ones for each pass. What `room`
// holds, is still there. Adapters aside, that is the traffic of data parallelism, and at most half as much again.
double received_bytes(const RunShape& shape, double room) {
  if (shape.ranks <= 1) return 0;
  const double of_others = 1 - 1.0 / shape.ranks;
  const double trained = number(shape.trained) * shape.parameter_bytes;
  const double all = number(shape.parameters) * shape.parameter_bytes;
  const double gradients = number(shape.trained) * shape.gradient_bytes;
  double parameters = trained;
  if (shape.gathered == Gathered::given_up) {
    const double given_up = all > 0 ? 1 - std::min(1.0, room / all) : 0;
    parameters += (trained + 2 * (all - trained)) * given_up;
  }
  return of_others * (parameters + gradients);
}

double seconds_for(double bytes, double rate) { return bytes > 0 && rate > 0 ? bytes / rate : 0; }

RunVerdict verdict_of(const RunEstimate& estimate, const RunMachine& machine) {
  if (estimate.least_memory > machine.memory_limit) return RunVerdict::too_little_memory;
  if (estimate.all.on_disk > machine.disk_free) return RunVerdict::too_little_disk;
  if (estimate.network_seconds > std::max(estimate.computing_seconds, estimate.disk_seconds))
    return RunVerdict::network_limits;
  if (estimate.all.on_disk == 0 && estimate.received == 0) return RunVerdict::fits;
  return estimate.disk_seconds > estimate.computing_seconds ? RunVerdict::disk_limits
                                                            : RunVerdict::computing_limits;
}

}  // namespace

RunEstimate estimate(const RunShape& shape, const RunMachine& machine) {
  RunEstimate found;
  const double working = working_bytes(shape);
  found.least_memory = whole(std::ceil(working / kForBlocks));
  found.kinds[static_cast<size_t>(Kind::other)].in_memory = whole(working);
  double room = std::max(0.0, kForBlocks * number(machine.memory_limit) - working);
  // What moves most often for its size stays first: parameters that are trained move three times, the rest twice.
  for (const Kind kind : {Kind::parameter, Kind::activation, Kind::gradient, Kind::state}) {
    const double bytes = bytes_of(kind, shape), stays = std::min(bytes, room);
    const Moves moves = moves_of(kind, shape);
    room -= stays;
    found.kinds[static_cast<size_t>(kind)] = {whole(stays), whole(bytes - stays),
                                              whole(moves.read * (bytes - stays)),
                                              whole(moves.written * (bytes - stays))};
  }
  for (const KindEstimate& kind : found.kinds) {
    found.all.in_memory += kind.in_memory;
    found.all.on_disk += kind.on_disk;
    found.all.read += kind.read;
    found.all.written += kind.written;
  }
  const double read = number(found.all.read), written = number(found.all.written);
  found.products = products(shape);
  const double operations = found.products + attention(shape);
  found.computing_seconds = seconds_for(operations, machine.flops);
  found.computing_seconds_most =
      seconds_for(operations, machine.flops_least > 0 ? machine.flops_least : machine.flops);
  found.disk_seconds =
      std::max({seconds_for(read, machine.read_rate), seconds_for(written, machine.write_rate),
                seconds_for(read + written, machine.both_rate)});
  found.checkpoint = whole(number(shape.saved) * shape.parameter_bytes +
                           number(shape.trained) * shape.state_bytes);
  found.received = whole(received_bytes(shape, room));
  found.network_seconds = seconds_for(number(found.received), machine.network_rate);
  found.seconds = std::max({found.computing_seconds, found.disk_seconds, found.network_seconds});
  constexpr double kHour = 3600, kHoursOfDay = 24;
  found.tokens_per_second = found.seconds > 0 ? shape.tokens() / found.seconds : 0;
  found.written_per_hour = found.seconds > 0 ? written * kHour / found.seconds : 0;
  found.days_of_drive = found.written_per_hour > 0
                            ? machine.endurance_bytes / found.written_per_hour / kHoursOfDay
                            : std::numeric_limits<double>::infinity();
  found.verdict = verdict_of(found, machine);
  return found;
}

}  // namespace bottomless
