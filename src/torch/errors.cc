#include "torch/errors.h"

#include <atomic>
#include <cerrno>

#include "torch/disk_error.h"

namespace bottomless {
namespace {

constexpr std::string_view kPrefix = "bottomless: ";

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<DiskErrorThrower> disk_error_thrower{nullptr};

// 0: no disk is to blame.
int disk_error_number(const Error& error) {
  if (error.code == Code::no_space) return error.number != 0 ? error.number : ENOSPC;
  return error.code == Code::io ? error.number : 0;
}

}  // namespace

void throw_error(const Error& error) {
  const c10::SourceLocation where{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  const std::string message = std::string(kPrefix) + error.message;
  switch (error.code) {
    case Code::no_memory:
      throw c10::OutOfMemoryError(where, message);
    case Code::invalid_argument:
      throw c10::ValueError(where, message);
    default:
      throw c10::Error(where, message);
  }
}

void set_disk_error_thrower(DiskErrorThrower thrower) { disk_error_thrower = thrower; }

void throw_operator_error(const Error& error) {
  const DiskErrorThrower thrower = disk_error_thrower;
  const int number = disk_error_number(error);
  if (thrower != nullptr && number != 0) thrower(number, std::string(kPrefix) + error.message);
  throw_error(error);
}

Error caught(const c10::Error& thrown) {
  std::string message = thrown.msg();
  if (message.starts_with(kPrefix)) message.erase(0, kPrefix.size());
  const bool no_memory = dynamic_cast<const c10::OutOfMemoryError*>(&thrown) != nullptr;
  return {no_memory ? Code::no_memory : Code::io, std::move(message)};
}

}  // namespace bottomless
