"""Optimizers whose update is one pass over memory, for parameters of float32, bfloat16 and float16.

    optimizer = bottomless.optim.AdamW(model.parameters(), lr=1e-4, state_dtype="8bit")

Arguments, options and ``state_dict`` are those of ``torch.optim``; one saved by either loads into the other. They need no
limit. Under one, master weights and states are tensors like all others and move as planned.

``state_dtype`` says what a state takes in memory and on disk: ``torch.float32``; ``torch.bfloat16``, half of it; ``"8bit"``,
a quarter and a scale for each 256 elements. Narrow ones are rounded up or down by chance, so that averages do not stick;
docs/optimizers.md says what that costs in accuracy.
Parameters of 16 bits get float32 master weights, unless ``master_weights=False``: then updates too small for their
format are lost.

``max_norm`` clips gradients by their global norm, as ``torch.nn.utils.clip_grad_norm_`` before ``step()`` would, without
writing them. ``skip_nonfinite`` leaves a step out if any gradient is infinite or not a number, and says of which parameter; a
``GradScaler`` has the same done.
"""

from ._adafactor import Adafactor
from ._adam import Adam, AdamW
from ._others import SGD, Adagrad, Lion

__all__ = ["SGD", "Adafactor", "Adagrad", "Adam", "AdamW", "Lion"]
