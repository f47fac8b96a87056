// torch's allocator for CPU memory while a limit is in force: storages of some size come from
// the current session's engine, small ones from the allocator that was there before, charged to
// the limit.
// Thread-safety: as c10::Allocator, from any thread.
#pragma once

namespace bottomless {

void install_allocator();
void remove_allocator();  // new storages come from the allocator before; living ones keep their
                          // deleter

}  // namespace bottomless
