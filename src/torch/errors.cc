#include "torch/errors.h"

namespace bottomless {
namespace {

constexpr std::string_view kPrefix = "bottomless: ";

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

Error caught(const c10::Error& thrown) {
  std::string message = thrown.msg();
  if (message.starts_with(kPrefix)) message.erase(0, kPrefix.size());
  const bool no_memory = dynamic_cast<const c10::OutOfMemoryError*>(&thrown) != nullptr;
  return {no_memory ? Code::no_memory : Code::io, std::move(message)};
}

}  // namespace bottomless
