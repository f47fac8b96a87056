// A library that imports a function, for imports_test.cc.
#include <unistd.h>

extern "C" int seen_by_importer() { return getpagesize(); }

// Through a pointer: another kind of entry in the import table.
extern "C" int seen_through_pointer() {
  int (*volatile function)() = &getpagesize;
  return function();
}
