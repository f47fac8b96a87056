// A range of bytes that is about to be touched.
#pragma once
#include <bottomless/bytes.h>

#include "base/access.h"

namespace bottomless {

struct Need {
  const void* address = nullptr;
  Bytes bytes = 0;
  Access access = Access::read;
  bool overwritten = false;  // with Access::write: all of it, so what is there need not be fetched
};

}  // namespace bottomless
