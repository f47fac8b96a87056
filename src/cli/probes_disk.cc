#include <mntent.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "base/text_file.h"
#include "cli/probes.h"
#include "io/transfers.h"

namespace bottomless::cli {
namespace {

namespace fs = std::filesystem;

struct Mount {
  std::string type;    // "ext4"
  std::string source;  // "/dev/nvme0n1p2"
};

bool lies_under(const std::string& path, const std::string& point) {
  return point == "/" || path == point || path.starts_with(point + "/");
}

// The mount that a directory lies on: the one whose point is the longest beginning of its path, and
// of several at one point the last, which hides the others.
std::optional<Mount> mount_of(const fs::path& directory, const fs::path& root) {
  std::error_code failed;
  const std::string path = fs::canonical(directory, failed).string();
  std::FILE* mounts = setmntent((root / "proc/self/mounts").c_str(), "re");
  if (mounts == nullptr) return std::nullopt;
  std::optional<Mount> best;
  size_t longest = 0;
  mntent entry{};
  char text[4096];
  while (getmntent_r(mounts, &entry, text, sizeof text) != nullptr) {
    const std::string point = entry.mnt_dir;
    if (!lies_under(path, point) || point.size() < longest) continue;
    longest = point.size();
    best = {entry.mnt_type, entry.mnt_fsname};
  }
  endmntent(mounts);
  return best;
}

bool is_network(const std::string& type) {
  constexpr std::array kNetwork{"nfs",    "nfs4", "cifs", "smb3",      "ceph",     "lustre", "9p",
                                "beegfs", "gpfs", "afs",  "glusterfs", "virtiofs", "pvfs2"};
  return type.starts_with("fuse") ||
         std::find(kNetwork.begin(), kNetwork.end(), type) != kNetwork.end();
}

// A partition has no queue of its own: its disk, the folder above, has.
std::string rotational(const fs::path& directory, const fs::path& root) {
  struct stat about {};
  if (stat(directory.c_str(), &about) != 0) return "";
  const fs::path device =
      root / "sys/dev/block" /
      (std::to_string(major(about.st_dev)) + ":" + std::to_string(minor(about.st_dev)));
  const std::string own = first_line(device / "queue/rotational");
  return own.empty() ? first_line(device / "../queue/rotational") : own;
}

Finding probe_file_system(const std::string& topic, const fs::path& directory,
                          const fs::path& root) {
  const std::optional<Mount> mount = mount_of(directory, root);
  if (!mount) return {topic, Verdict::good, "of unknown kind", ""};
  std::string value = mount->type + " on " + mount->source;
  const std::string rotates = rotational(directory, root);
  if (rotates == "1") value += ", rotating by its own account";
  if (rotates == "0") value += ", solid-state";
  if (mount->type == "tmpfs" || mount->type == "ramfs") {
    return {topic, Verdict::could_be_better, value,
            "that is memory, not disk: what is moved there still takes memory; name a directory "
            "on a disk"};
  }
  if (mount->type == "overlay") {
    return {topic, Verdict::could_be_better, value,
            "a container's own layer is often slow and small: mount a directory of the host's "
            "disk and name that"};
  }
  if (is_network(mount->type)) {
    return {topic, Verdict::could_be_better, value,
            "it is reached over a network or another process: a local NVMe disk is faster"};
  }
  return {topic, Verdict::good, value, ""};
}

Finding probe_space(const std::string& topic, const fs::path& directory, const fs::path& root) {
  struct statvfs space {};
  statvfs(directory.c_str(), &space);
  const Bytes free = space.f_bavail * space.f_frsize;
  const Bytes memory = byte_field(root / "proc/meminfo", "MemTotal").value_or(0);
  if (free >= memory) return {topic, Verdict::good, format_bytes(free) + " free", ""};
  return {topic, Verdict::could_be_better, format_bytes(free) + " free",
          "less than the machine's memory (" + format_bytes(memory) +
              "): a program much larger than memory will not fit; free some or name a larger disk"};
}

Finding probe_direct(const std::string& topic, Caching caching) {
  if (caching == Caching::direct) return {topic, Verdict::good, "supported", ""};
  return {topic, Verdict::could_be_better, "refused by the file system",
          "use ext4 or xfs on NVMe; transfers go through the page cache until then"};
}

struct Speeds {
  Rate writing;
  Rate reading;
};

// A file is written for part of a second, then what was written is measured, once each way.
Result<Speeds> measure_directory(const fs::path& directory) {
  constexpr double kPart = 0.35;
  Result<WorkingFile> file = WorkingFile::open(directory, 256_MiB);
  if (!file.ok()) return std::move(file).error();
  if (Result<void> filled = file.value().fill(kPart); !filled.ok())
    return std::move(filled).error();
  const std::span<WorkingFile> files(&file.value(), 1);
  Load load{.size = 4_MiB, .depth = 8, .seconds = kPart};
  load.pattern = Pattern::write;
  Result<Rate> writing = measure(files, load);
  if (!writing.ok()) return std::move(writing).error();
  load.pattern = Pattern::read;
  Result<Rate> reading = measure(files, load);
  if (!reading.ok()) return std::move(reading).error();
  return Speeds{writing.value(), reading.value()};
}

Finding probe_speed(const std::string& topic, const fs::path& directory) {
  const Result<Speeds> speeds = measure_directory(directory);
  if (!speeds.ok()) {
    return {topic, Verdict::could_be_better, "not measured: " + speeds.error().message,
            "see that a run could write there"};
  }
  return judge_speed(topic, speeds.value().writing, speeds.value().reading);
}

std::string number(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

Findings probe_transfers(const fs::path& root) {
  const auto ring = make_uring_transfers(DiskQueue::kDepth);
  if (ring.ok()) return {{"io_uring", Verdict::good, "permitted", ""}};
  std::string value = ring.error().message;
  std::string remedy = "use Linux 5.6 or newer";
  const std::string disabled = first_line(root / "proc/sys/kernel/io_uring_disabled");
  if (!disabled.empty() && disabled != "0") {
    value += " (kernel.io_uring_disabled is " + disabled + ")";
    remedy = "sysctl kernel.io_uring_disabled=0";
  } else if (field(root / "proc/self/status", "Seccomp") == "2") {
    value += " (a seccomp filter is at work)";
    remedy = "permit it in the container's seccomp profile";
  }
  return {{"io_uring", Verdict::could_be_better, value,
           remedy + "; until then a few threads do the transfers"}};
}

Finding judge_speed(const std::string& topic, const Rate& writing, const Rate& reading) {
  constexpr double kSlow = 500e6;
  const double slower = std::min(writing.bytes_per_second(), reading.bytes_per_second());
  const std::string value = "writes " + number("%.2f", writing.bytes_per_second() * 1e-9) +
                            " GB/s, reads " + number("%.2f", reading.bytes_per_second() * 1e-9) +
                            " GB/s";
  if (slower >= kSlow) return {topic, Verdict::good, value, ""};
  return {topic, Verdict::could_be_better, value,
          number("%.1f", static_cast<double>(1_GiB) / slower) +
              " s to move each GiB, and a step may move many: use a local NVMe disk, or several "
              "(--disk a,b)"};
}

Findings probe_directory(const fs::path& directory, const fs::path& root) {
  const std::string topic = "disk " + directory.string();
  const Result<ScratchFile> file = ScratchFile::open(directory);
  if (!file.ok())
    return {{topic, Verdict::missing, file.error().message, "name a directory you can write to"}};
  return {probe_space(topic, directory, root),
          probe_file_system(topic + " file system", directory, root),
          probe_direct(topic + " O_DIRECT", file.value().caching()),
          probe_speed(topic + " speed", directory)};
}

}  // namespace bottomless::cli
