// What a disk can do, found out by doing it.
// Thread-safety: see DiskQueue; waits for the disk.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <filesystem>
#include <string>

#include "io/disk_queue.h"

namespace bottomless {

// Bytes a second, over `bytes` that are written to a scratch file of their own, and read. Fails, with
// the file called `target`, when the disk does, or gives back something else than was written.
Result<double> measure_speed(DiskQueue& queue, const std::filesystem::path& directory, Bytes bytes,
                             const std::string& target);

}  // namespace bottomless
