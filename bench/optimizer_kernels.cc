// How fast the optimizer kernels go through memory, beside STREAM's copy and triad in the same process: bytes that must be
// read and written, by the time it takes. Each line is measured once per round, in turns, and the median counts.
//
//   build/release/bench/optimizer_kernels [--elements N] [--threads N] [--rounds N] [--filter TEXT] [--target NAME]
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "optim/gradient_norm.h"
#include "optim/optimizers.h"
#include "optim/quantised.h"
#include "optim/targets.h"

namespace {

using namespace bottomless::optim;

struct Options {
  size_t elements = size_t{1} << 26;
  size_t threads = 2;
  size_t rounds = 7;
  std::string filter, target;
};

// Page-aligned, and every page written by the thread that will use it.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {}
  ~Memory() { std::free(bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(bytes_);
  }

 private:
  std::byte* bytes_;
};

struct Range {
  size_t start, count;
};

struct Line {
  std::string name;
  double bytes_per_element;
  std::function<void(Range)> run;
  std::vector<double> seconds = {};

  double gigabytes_per_second(size_t elements) {
    std::sort(seconds.begin(), seconds.end());
    return bytes_per_element * static_cast<double>(elements) / seconds[seconds.size() / 2] / 1e9;
  }
};

// All threads begin together; the slowest counts.
double measure(const std::vector<Range>& ranges, const std::function<void(Range)>& run) {
  using Clock = std::chrono::steady_clock;
  std::barrier together(static_cast<std::ptrdiff_t>(ranges.size()));
  std::vector<Clock::time_point> begins(ranges.size()), ends(ranges.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < ranges.size(); ++i) {
    threads.emplace_back([&, i] {
      together.arrive_and_wait();
      begins[i] = Clock::now();
      run(ranges[i]);
      ends[i] = Clock::now();
    });
  }
  threads.clear();
  return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) -
                                       *std::min_element(begins.begin(), begins.end()))
      .count();
}

struct Buffers {
  explicit Buffers(size_t elements)
      : parameter(4 * elements),
        master(4 * elements),
        gradient(4 * elements),
        first(4 * elements),
        second(4 * elements),
        first_scales(4 * block_count(elements)),
        second_scales(4 * block_count(elements)),
        a(4 * elements),
        b(4 * elements),
        c(4 * elements),
        d(4 * elements) {}

  void touch(Range range) const {
    for (const Memory* memory : {&parameter, &master, &gradient, &first, &second, &a, &b, &c, &d})
      std::memset(memory->as<float>() + range.start, 0, 4 * range.count);
    const size_t blocks = block_count(range.count);
    std::memset(first_scales.as<float>() + range.start / kBlock, 0, 4 * blocks);
    std::memset(second_scales.as<float>() + range.start / kBlock, 0, 4 * blocks);
  }

  // Small gradients, and values that neither grow nor become denormal in all the rounds.
  void fill(Range range, Element type, Element gradient_type, StateFormat format) const {
    for (size_t i = range.start; i < range.start + range.count; ++i) {
      const float value = 1e-3f * static_cast<float>(i * 2654435761u % 1000 + 1);
      store_element(type, parameter.as<void>(), i, value);
      master.as<float>()[i] = value;
      store_element(gradient_type, gradient.as<void>(), i, i % 2 == 0 ? value : -value);
      if (format == StateFormat::quantised8) {
        first.as<int8_t>()[i] = static_cast<int8_t>(i % 255);
        second.as<uint8_t>()[i] = static_cast<uint8_t>(i % 255 + 1);
        first_scales.as<float>()[i / kBlock] = second_scales.as<float>()[i / kBlock] = 1;
      } else {
        const Element stored =
            format == StateFormat::float32 ? Element::float32 : Element::bfloat16;
        store_element(stored, first.as<void>(), i, value);
        store_element(stored, second.as<void>(), i, value);
      }
    }
  }

  Memory parameter, master, gradient, first, second, first_scales, second_scales;
  Memory a, b, c, d;  // of the lines to compare with; zeros
};

struct Formats {
  const char* name;
  Element parameter;
  bool has_master;
  Element gradient;
  StateFormat state;
  Rounding rounding = Rounding::nearest;
};

Arrays arrays(const Buffers& buffers, const Formats& formats, Range range) {
  const auto state = [&](const Memory& values, const Memory& scales) {
    return State{values.as<std::byte>() + range.start * bytes_of(formats.state), formats.state,
                 scales.as<float>() + range.start / kBlock, formats.rounding};
  };
  return {buffers.parameter.as<std::byte>() + range.start * bytes_of(formats.parameter),
          formats.parameter,
          formats.has_master ? buffers.master.as<float>() + range.start : nullptr,
          buffers.gradient.as<std::byte>() + range.start * bytes_of(formats.gradient),
          formats.gradient,
          state(buffers.first, buffers.first_scales),
          state(buffers.second, buffers.second_scales),
          range.count};
}

struct Rule {
  const char* name;
  int states;
  std::function<void(const Arrays&)> update;
};

double bytes_per_element(const Rule& rule, const Formats& formats) {
  const auto parameter = static_cast<double>(bytes_of(formats.parameter));
  const double state = static_cast<double>(bytes_of(formats.state)) +
                       (formats.state == StateFormat::quantised8 ? 4.0 / kBlock : 0);
  return (formats.has_master ? 8 + parameter : 2 * parameter) +
         static_cast<double>(bytes_of(formats.gradient)) + rule.states * 2 * state;
}

void copy(const Buffers& buffers, Range range) {
  float* __restrict a = buffers.a.as<float>() + range.start;
  const float* __restrict b = buffers.b.as<float>() + range.start;
  std::memcpy(a, b, 4 * range.count);
}

void triad(const Buffers& buffers, Range range) {
  float* __restrict a = buffers.a.as<float>() + range.start;
  const float* __restrict b = buffers.b.as<float>() + range.start;
  const float* __restrict c = buffers.c.as<float>() + range.start;
  for (size_t i = 0; i < range.count; ++i) a[i] = b[i] + 3.0f * c[i];
}

// What a kernel with two states does to memory, and nothing else.
void change_in_place(const Buffers& buffers, Range range) {
  float* __restrict a = buffers.a.as<float>() + range.start;
  float* __restrict b = buffers.b.as<float>() + range.start;
  float* __restrict c = buffers.c.as<float>() + range.start;
  const float* __restrict d = buffers.d.as<float>() + range.start;
  for (size_t i = 0; i < range.count; ++i) {
    a[i] += d[i];
    b[i] += d[i];
    c[i] += d[i];
  }
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    const char* value = arguments[i + 1];
    if (name == "--elements") options.elements = std::strtoull(value, nullptr, 0);
    if (name == "--threads") options.threads = std::strtoull(value, nullptr, 0);
    if (name == "--rounds") options.rounds = std::strtoull(value, nullptr, 0);
    if (name == "--filter") options.filter = value;
    if (name == "--target") options.target = value;
  }
  return options;
}

std::vector<Range> split(const Options& options) {
  const size_t each = options.elements / options.threads / kBlock * kBlock;
  std::vector<Range> ranges;
  for (size_t i = 0; i < options.threads; ++i) ranges.push_back({i * each, each});
  return ranges;
}

std::vector<Formats> all_formats() {
  const Element f32 = Element::float32, bf16 = Element::bfloat16, f16 = Element::float16;
  return {
      {"all float32", f32, false, f32, StateFormat::float32},
      {"all bfloat16", bf16, false, bf16, StateFormat::bfloat16},
      {"all bfloat16, stochastic", bf16, false, bf16, StateFormat::bfloat16, Rounding::stochastic},
      {"float32, bfloat16 states", f32, false, f32, StateFormat::bfloat16},
      {"float32, 8-bit states", f32, false, f32, StateFormat::quantised8},
      {"bfloat16 + master, float32 states", bf16, true, bf16, StateFormat::float32},
      {"bfloat16 + master, 8-bit states", bf16, true, bf16, StateFormat::quantised8},
      {"bfloat16, 8-bit states", bf16, false, bf16, StateFormat::quantised8},
      {"float16 + master, float32 states", f16, true, f16, StateFormat::float32}};
}

template <class R>
Rule rule(const char* name, int states, R rule) {
  return {name, states, [rule](const Arrays& arrays) { update(rule, arrays); }};
}

std::vector<Rule> all_rules() {
  return {
      rule("AdamW", 2, AdamRule{.rate = 1e-6, .weight_decay = 0.1, .decoupled = true, .step = 9}),
      rule("SGD", 0, SgdRule{.rate = 1e-6}),
      rule("momentum", 1, SgdRule{.rate = 1e-6, .momentum = 0.9, .step = 9}),
      rule("Adagrad", 1, AdagradRule{.rate = 1e-6}), rule("Lion", 1, LionRule{.rate = 1e-6})};
}

// Copy and triad come first.
std::vector<Line> lines_for(const Buffers& buffers, const Formats& formats,
                            const std::string& filter) {
  std::vector<Line> lines{
      {"copy", 8, [&](Range range) { copy(buffers, range); }},
      {"triad", 12, [&](Range range) { triad(buffers, range); }},
      {"in place", 28, [&](Range range) { change_in_place(buffers, range); }},
      {"norm", static_cast<double>(bytes_of(formats.gradient)), [&](Range range) {
         const Arrays a = arrays(buffers, formats, range);
         const volatile double sum = sum_of_squares(a.gradient, a.gradient_type, a.count).sum;
         (void)sum;
       }}};
  for (const Rule& rule : all_rules()) {
    if ((std::string(rule.name) + " " + formats.name).find(filter) == std::string::npos) continue;
    lines.push_back({rule.name, bytes_per_element(rule, formats),
                     [&, rule](Range range) { rule.update(arrays(buffers, formats, range)); }});
  }
  return lines;
}

void run(const Options& options, const Formats& formats, const Buffers& buffers) {
  const std::vector<Range> ranges = split(options);
  std::vector<Line> lines = lines_for(buffers, formats, options.filter);
  if (lines.size() == 4) return;  // the filter left no rule
  measure(ranges, [&](Range range) {
    buffers.fill(range, formats.parameter, formats.gradient, formats.state);
  });
  for (size_t round = 0; round <= options.rounds; ++round) {
    for (Line& line : lines) {
      const double seconds = measure(ranges, line.run);
      if (round > 0) line.seconds.push_back(seconds);  // the first one warms up
    }
  }
  const double ceiling = lines[1].gigabytes_per_second(options.elements);
  for (Line& line : lines) {
    const double speed = line.gigabytes_per_second(options.elements);
    std::printf("%-10s %-34s %9.2f %9.2f %9.2f %12.3f\n", line.name.c_str(), formats.name,
                line.bytes_per_element, speed, speed / ceiling, line.bytes_per_element / speed);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  std::optional<OnlyTarget> only;
  for (const Target target : targets())
    if (target.name == options.target) only.emplace(target);
  std::printf("%zu elements, %zu threads, %zu rounds, %s\n", options.elements, options.threads,
              options.rounds, chosen_target().name.data());
  std::printf("%-10s %-34s %9s %9s %9s %12s\n", "rule", "formats", "B/element", "GB/s", "of triad",
              "ns/element");

  const Buffers buffers(options.elements);
  measure(split(options), [&](Range range) { buffers.touch(range); });
  for (const Formats& formats : all_formats()) run(options, formats, buffers);
  return 0;
}
