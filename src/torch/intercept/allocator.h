// torch's allocator for CPU memory while a limit is in force: storages of some size come from
// the current session's engine, small ones from the allocator that was there before, charged to
// the limit.
// Thread-safety: as c10::Allocator, from any thread.
#pragma once
#include <c10/core/Allocator.h>

namespace bottomless {

void install_allocator();
void remove_allocator();  // new storages come from the allocator before; living ones keep their
                          // deleter

// In the place of c10's function of that name, see system_calls.h: storages made or unpickled by
// Python ask for torch's own allocator and not for the one that is installed.
c10::Allocator* default_cpu_allocator();

// What owns the storage that an engine gave at `address`.
c10::DataPtr managed_data_ptr(void* address);

}  // namespace bottomless
