// For threads of ours in which updates that waited may run: kernels start no threads there. These would inherit the blocked
// signals, and a fault of theirs would find no handler.
// Thread-safety: is about the calling thread alone.
#pragma once

namespace bottomless {

void compute_alone();

}  // namespace bottomless
