#include "support/temporary_directory.h"

#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <string>
#include <system_error>

#include "base/check.h"

namespace bottomless {

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "bottomless-test-XXXXXX").string();
  BOTTOMLESS_CHECK(::mkdtemp(name.data()) != nullptr, "no temporary directory could be made");
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

size_t TemporaryDirectory::entries() const {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_),
                                           std::filesystem::directory_iterator()));
}

}  // namespace bottomless
