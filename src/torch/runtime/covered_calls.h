// Tells the redirected calls of libc (os/system_calls.h) which memory is that of tensors, and redirects what torch's own
// libraries import of each other.
// Thread-safety: from one thread at a time.
#pragma once

namespace bottomless {

void cover_calls_on_tensors();

}  // namespace bottomless
