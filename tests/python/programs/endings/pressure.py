"""Shared by the programs beside it: work that does not fit into 12 MiB, and a report of what moved meanwhile."""

import contextlib
import hashlib
import json
import os
import sys

import torch
from torch import nn


class Training:
    """Ten layers and Adam, 40 MiB in all. What it does depends on its seed alone, whatever other threads do.

    The optimizer is written out: those of torch import its compiler, which takes longer than most of these programs.
    """

    def __init__(self, seed=0, layers=10):
        self.generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(layers)))
        self.parameters = list(self.model.parameters())
        for parameter in self.parameters:
            nn.init.uniform_(parameter, -0.05, 0.05, generator=self.generator)
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.amid_backward = self.amid_step = lambda: None  # called there

    def backward(self, inputs=None):
        if inputs is None:
            inputs = torch.randn(8, 512, generator=self.generator)
        half = len(self.model) // 2
        middle = self.model[:half](inputs)
        middle.register_hook(lambda _: self.amid_backward())
        self.model[half:](middle).square().mean().backward()

    @torch.no_grad()
    def update(self):
        gradients = [parameter.grad for parameter in self.parameters]
        torch._foreach_lerp_(self.means, gradients, 0.1)
        torch._foreach_mul_(self.squares, 0.999)
        self.amid_step()
        torch._foreach_addcmul_(self.squares, gradients, gradients, 0.001)
        divisors = torch._foreach_sqrt(self.squares)
        torch._foreach_add_(divisors, 1e-8)
        torch._foreach_addcdiv_(self.parameters, self.means, divisors, -1e-3)
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, inputs=None):
        self.backward(inputs)
        self.update()

    def run(self, steps=2):
        for _ in range(steps):
            self.step()
        return self

    def digest(self):
        return digest([*self.parameters, *self.means, *self.squares])


def numbered(count=16):
    """Tensors of 1 MiB that tell where they are."""
    return [torch.arange(n << 18, (n + 1) << 18, dtype=torch.int32) for n in range(count)]


def digest(tensors):
    result = hashlib.sha256()
    for tensor in tensors:
        result.update(tensor.detach().numpy())
    return result.hexdigest()


def stats():
    """The counters of the limit in force; none without one."""
    bottomless = sys.modules.get("bottomless")
    return bottomless._current.stats() if bottomless is not None and bottomless._current is not None else None


def report(counters=None):
    """Leaves the counters where the test looks for them: a program that is killed cannot print them last."""
    counters = counters or stats()
    if counters is not None:
        with open(os.environ["ENDING_REPORT"], "w") as file:
            json.dump(counters, file)


@contextlib.contextmanager
def reading_back():
    """Reports also how much was read inside the block."""
    before = stats()
    yield
    if before is not None:
        after = stats()
        report({**after, "read_at_the_end": after["read_bytes"] - before["read_bytes"]})


def run_case(cases):
    """Runs the function of the main module that the command line names."""
    cases[sys.argv[1]](*sys.argv[2:])
