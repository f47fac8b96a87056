// How a disk's error leaves an operator where the program's language has an exception of its own for it.
// Thread-safety: may be set from any thread; called from the threads of operators.
#pragma once
#include <string>

namespace bottomless {

// Throws, or returns if it cannot.
using DiskErrorThrower = void (*)(int number, const std::string& message);
void set_disk_error_thrower(DiskErrorThrower thrower);

}  // namespace bottomless
