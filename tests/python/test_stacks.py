"""The stacks of our threads are small, and count against the limit; kernels of torch run on some of them."""

import re

import pytest
import torch
from torch import nn

import bottomless
from helpers import limit, squeeze

STACK = 256 << 10  # Thread::kStackBytes
MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) ", re.MULTILINE)


def used_of_stacks():
    """How much of each mapping of a stack's size behind a guard page was ever touched, in bytes."""
    with open("/proc/self/smaps") as file:
        mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", file.read())
    used, end_of_guard = [], None
    for text in mappings:
        begin, end, access = MAPPING.match(text).groups()
        begin, end = int(begin, 16), int(end, 16)
        if access == "rw-p" and end - begin == STACK and begin == end_of_guard:
            used.append(1024 * int(re.search(r"^Rss: +(\d+) kB", text, re.MULTILINE)[1]))
        end_of_guard = end if access == "---p" else None
    return used


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, momentum=0.9, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "adamw8bit": lambda parameters: bottomless.optim.AdamW(parameters, state_dtype="8bit"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_half_of_a_stack_is_enough(name, disk):
    """Updates that waited run on the thread that serves faults, when numpy looks at a parameter."""
    with limit("16MiB", disk) as runtime:
        model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(16)])
        optimizer = OPTIMIZERS[name](model.parameters())
        for _ in range(2):
            model(torch.randn(64, 512)).square().mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.detach().numpy()[..., 0] += 1
            optimizer.zero_grad()
        squeeze()
        assert runtime.stats()["faults"] > 0 and runtime.stats()["deferred_updates"] > 0
        used = used_of_stacks()
        print(sorted(used))
        assert used and max(used) <= STACK / 2
