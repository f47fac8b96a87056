#include "torch/errors.h"

#include <c10/util/Exception.h>

namespace bottomless {

void throw_error(const Error& error) {
  const c10::SourceLocation where{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  const std::string message = "bottomless: " + error.message;
  switch (error.code) {
    case Code::no_memory:
      throw c10::OutOfMemoryError(where, message);
    case Code::invalid_argument:
      throw c10::ValueError(where, message);
    default:
      throw c10::Error(where, message);
  }
}

}  // namespace bottomless
