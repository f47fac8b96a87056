"""Random PyTorch programs, run plainly and inside a limit: whatever they leave behind must be the same, bit by bit.

    cd tests/python && python -m torture --minutes 60

A program is a list of statements (`grammar.py`) in terms of a few helpers (`statements.py`, `training.py`). Each run is
a child forked from a process that has imported everything and computed nothing (`runner.py`, `execution.py`). A program
that goes wrong or hangs is made as short as it can be and printed as a script.
"""

import os

os.environ["MKL_CBWR"] = "COMPATIBLE"  # before torch loads MKL: the same bits whatever the alignment
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ.pop("BOTTOMLESS_EVICT_EAGERLY", None)

import torch
import torch._dynamo  # optimizers import it when they are first used

torch.set_num_threads(1)  # no threads that a forked child would miss
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
