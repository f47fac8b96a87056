// What groups of parameters inherit of an optimizer's options.
// Thread-safety: free functions.
#pragma once
#include <bottomless/optim.h>

namespace bottomless::optim {

// Each of `options` that is as it is in `unset` becomes what it is in `defaults`. For the options of every optimizer.
template <class Options>
void inherit_options(Options& options, const Options& defaults, const Options& unset);

}  // namespace bottomless::optim
