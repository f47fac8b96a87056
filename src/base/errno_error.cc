#include "base/errno_error.h"

#include <cerrno>
#include <system_error>

namespace bottomless {
namespace {

Code code_of(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Code::no_space;
    case ENOMEM:
      return Code::no_memory;
    case ENOENT:
    case ENOTDIR:
      return Code::not_found;
    case EACCES:
    case EPERM:
    case EROFS:
    case EINVAL:
      return Code::invalid_argument;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::unsupported;
    default:
      return Code::io;
  }
}

}  // namespace

Error errno_error(int error_number, std::string attempted, std::string_view advice) {
  attempted += ": ";
  attempted += std::generic_category().message(error_number);
  if (!advice.empty()) {
    attempted += "; ";
    attempted += advice;
  }
  return {code_of(error_number), std::move(attempted), error_number};
}

}  // namespace bottomless
