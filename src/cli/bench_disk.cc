// `bottomless bench disk`: what a disk gives, through the queue that moves the tensors of a run,
// and beside it what fio gets from the same file.
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_report.h"
#include "cli/fio.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "io/disk_measure.h"

namespace bottomless::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> directories;
  std::vector<std::string> sizes{"64KiB", "1MiB", "4MiB", "16MiB"};
  std::vector<unsigned> depths{1, 8, 32};
  std::string bytes = "1GiB";
  double seconds = 2;
  unsigned rounds = 3;
  bool no_fio = false;
  bool json = false;
};

Result<Bytes> request_bytes(const std::string& option, const std::string& text) {
  Result<Bytes> bytes = parse_bytes(text);
  if (!bytes.ok()) return Error{Code::invalid_argument, option + ": " + bytes.error().message};
  if (bytes.value() == 0 || bytes.value() % kRequestAlignment != 0) {
    return Error{Code::invalid_argument, option + " " + text + ": must be a multiple of " +
                                             format_bytes(kRequestAlignment)};
  }
  return bytes;
}

// Every combination, in the order of the table.
Result<std::vector<Load>> loads(const BenchOptions& options, Bytes file_bytes) {
  std::vector<Bytes> sizes;
  for (const std::string& text : options.sizes) {
    Result<Bytes> size = request_bytes("--size", text);
    if (!size.ok()) return std::move(size).error();
    if (size.value() > file_bytes) {
      return Error{Code::invalid_argument, "--size " + text + ": larger than the file, " +
                                               format_bytes(file_bytes) + " (--bytes)"};
    }
    sizes.push_back(size.value());
  }
  std::vector<Load> all;
  for (const Pattern pattern : {Pattern::read, Pattern::write, Pattern::mixed}) {
    for (const Bytes size : sizes) {
      for (const unsigned depth : options.depths)
        all.push_back({pattern, size, depth, options.seconds});
    }
  }
  return all;
}

class DiskBench {
 public:
  DiskBench(const BenchOptions& options, Bytes file_bytes, std::vector<Load> loads)
      : options_(options),
        loads_(std::move(loads)),
        fio_(options.no_fio ? std::nullopt : find_fio()),
        progress_(stderr, steps()) {
    report_.bytes = file_bytes;
    if (fio_) report_.fio = fio_->version;
  }

  Result<BenchReport> run() {
    if (Result<void> made = make_files(); !made.ok()) return std::move(made).error();
    for (size_t i = 0; i < files_.size(); ++i) {
      if (Result<void> done = measure_files(i, 1); !done.ok()) return std::move(done).error();
    }
    if (files_.size() > 1) {
      if (Result<void> done = measure_files(0, files_.size()); !done.ok())
        return std::move(done).error();
    }
    return std::move(report_);
  }

 private:
  size_t steps() const {
    const size_t files = options_.directories.size();
    const size_t alone = files * loads_.size() * options_.rounds * (fio_ ? 2 : 1);
    const size_t together = files > 1 ? loads_.size() * options_.rounds : 0;
    return files + alone + together;
  }

  // All are opened before the first is filled: what is wrong with any shows at once.
  Result<void> make_files() {
    for (const std::string& directory : options_.directories) {
      Result<WorkingFile> file = WorkingFile::open(directory, report_.bytes);
      if (!file.ok()) return std::move(file).error();
      files_.push_back(std::move(file).value());
    }
    for (WorkingFile& file : files_) {
      progress_.begin("filling a file in " + file.directory().string());
      constexpr double kAsLongAsItTakes = std::numeric_limits<double>::infinity();
      if (Result<void> filled = file.fill(kAsLongAsItTakes); !filled.ok()) return filled;
    }
    const WorkingFile& first = files_.front();
    report_.engine =
        std::string(first.caching() == Caching::direct ? "O_DIRECT" : "through the page cache") +
        (first.without_uring() ? ", by threads (" + *first.without_uring() + ")" : ", io_uring");
    return {};
  }

  Result<void> measure_files(size_t first, size_t count) {
    const std::span<WorkingFile> files = std::span(files_).subspan(first, count);
    std::string where = count == 1 ? options_.directories[first] : "all together";
    for (const Load& load : loads_) {
      BenchRow row{.load = load};
      for (const WorkingFile& file : files) row.directories.push_back(file.directory().string());
      const std::string what = std::string(name_of(load.pattern)) + " " + format_bytes(load.size) +
                               ", " + std::to_string(load.depth) + " in flight, " + where;
      for (unsigned round = 0; round < options_.rounds; ++round) {
        progress_.begin(what);
        Result<Rate> ours = measure(files, load);
        if (!ours.ok()) return std::move(ours).error();
        row.ours.push_back(ours.value());
        if (!fio_ || count > 1) continue;
        progress_.begin(what);
        Result<Rate> fio = measure_with_fio(*fio_, files.front(), load);
        if (!fio.ok()) return std::move(fio).error();
        row.fio.push_back(fio.value());
      }
      report_.rows.push_back(std::move(row));
    }
    return {};
  }

  const BenchOptions& options_;
  const std::vector<Load> loads_;
  const std::optional<Fio> fio_;
  Progress progress_;
  BenchReport report_;
  std::vector<WorkingFile> files_;
};

int bench_disk(const BenchOptions& options) {
  if (options.rounds == 0) return usage_error("bench disk", "--rounds: at least 1");
  if (!(options.seconds > 0) || !std::isfinite(options.seconds))
    return usage_error("bench disk", "--seconds: must be more than nothing");
  for (const unsigned depth : options.depths) {
    if (depth == 0) return usage_error("bench disk", "--depth: at least 1");
  }
  const Result<Bytes> bytes = request_bytes("--bytes", options.bytes);
  if (!bytes.ok()) return usage_error("bench disk", bytes.error().message);
  Result<std::vector<Load>> wanted = loads(options, bytes.value());
  if (!wanted.ok()) return usage_error("bench disk", wanted.error().message);

  Result<BenchReport> report = DiskBench(options, bytes.value(), std::move(wanted).value()).run();
  if (!report.ok()) return failure(report.error().message);
  if (options.json) {
    std::printf("%s\n", json_of(report.value()).dump().c_str());
    return kDone;
  }
  std::printf("%s", table_of(report.value()).c_str());
  std::printf("Medians of %u rounds of %g s each; mixed is half reads, half writes.\n",
              options.rounds, options.seconds);
  if (report.value().fio.empty() && !options.no_fio)
    std::printf("fio is not on PATH, so there is nothing to compare with: apt install fio\n");
  return kDone;
}

}  // namespace

std::function<int()> add_bench_disk(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  app.add_option("directory", options->directories,
                 "Directories to measure, each alone and then all together")
      ->required();
  const auto list = [](CLI::Option* option) { option->delimiter(',')->allow_extra_args(false); };
  list(
      app.add_option("--size", options->sizes, "Bytes of a request, or several with commas between")
          ->default_str("64KiB,1MiB,4MiB,16MiB"));
  list(app.add_option("--depth", options->depths,
                      "Requests kept in flight, or several with commas between")
           ->default_str("1,8,32"));
  app.add_option("--bytes", options->bytes,
                 "Size of the file in each directory; it has no name and is gone afterwards")
      ->default_str("1GiB");
  app.add_option("--seconds", options->seconds, "How long each measurement takes")
      ->default_str("2");
  app.add_option("--rounds", options->rounds,
                 "How often each is repeated, in turns with fio; the median counts")
      ->default_str("3");
  app.add_flag("--no-fio", options->no_fio, "Do not compare with fio, even if it is there");
  app.add_flag("--json", options->json, "Print the result as JSON");
  app.footer(
      "Requests go to random places of a file that was written before. fio, where it is on PATH,\n"
      "does the same with the same file. Example: bottomless bench disk --depth 8 /nvme/scratch");
  return [options] { return bench_disk(*options); };
}

}  // namespace bottomless::cli
