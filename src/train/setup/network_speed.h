// What the network between the ranks reaches: for the estimate before a run.
#pragma once
#include "train/setup/ranks.h"

namespace bottomless::train {

// Bytes a second that a rank receives while it sends as much and all others do so, too: the mean over the ranks; 0 where there is one
// alone. All ranks call it.
// Throws c10::Error when another rank has ended or does not come until the deadline.
double measure_network(Ranks& ranks);

}  // namespace bottomless::train
