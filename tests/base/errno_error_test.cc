#include "base/errno_error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace bottomless {
namespace {

TEST(ErrnoError, EachErrnoHasTheCodeThatSaysWhatToDo) {
  struct Case {
    int error_number;
    Code code;
  };
  const std::vector<Case> cases{
      {ENOSPC, Code::no_space},
      {EDQUOT, Code::no_space},
      {EFBIG, Code::no_space},
      {ENOMEM, Code::no_memory},
      {ENOENT, Code::not_found},
      {ENOTDIR, Code::not_found},
      {EACCES, Code::invalid_argument},
      {EPERM, Code::invalid_argument},
      {EROFS, Code::invalid_argument},
      {EINVAL, Code::invalid_argument},
      {ENOSYS, Code::unsupported},
      {EOPNOTSUPP, Code::unsupported},
      {EIO, Code::io},
      {EAGAIN, Code::io},
      {ENXIO, Code::io},
  };
  for (const Case& each : cases)
    EXPECT_EQ(errno_error(each.error_number, "try").code, each.code) << each.error_number;
}

TEST(ErrnoError, MessageSaysWhatWasAttemptedWhatHappenedAndWhatToDo) {
  EXPECT_EQ(errno_error(ENOENT, "open '/nowhere'", "name an existing directory").message,
            "open '/nowhere': No such file or directory; name an existing directory");
  EXPECT_EQ(errno_error(EIO, "read it").message, "read it: Input/output error");
}

}  // namespace
}  // namespace bottomless
