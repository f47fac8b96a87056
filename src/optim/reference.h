// What optimizers.h, adafactor.h and gradient_norm.h promise, one element after the other in plain C++: the specification. Not for use
// but to compare with.
// Thread-safety: as there.
#pragma once
#include "optim/adafactor.h"
#include "optim/gradient_norm.h"
#include "optim/optimizers.h"

namespace bottomless::optim::reference {

Outcome update(const AdamRule& rule, const Arrays& arrays);
Outcome update(const SgdRule& rule, const Arrays& arrays);
Outcome update(const AdagradRule& rule, const Arrays& arrays);
Outcome update(const LionRule& rule, const Arrays& arrays);
void update(const AdafactorRule& rule, const AdafactorArrays& arrays);

SquareSum sum_of_squares(const void* gradient, Element type, size_t count);

}  // namespace bottomless::optim::reference
