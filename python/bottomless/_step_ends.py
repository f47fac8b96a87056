"""Which call of an optimizer's step() ends a step of training, where a program has several optimizers."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch


@dataclass
class _Calls:
    count: int = 0
    last: int = 0  # the call of any optimizer that was its last one
    gap: int = 0  # calls of all optimizers between its last two


class StepEnds:
    """Of optimizers that take turns (a generator and its critic, one for each group), the one that is called least
    often ends the step, the last in order if several are; so that a step is what repeats as a whole."""

    SELDOM = 16  # one that leaves so many calls to others has no part in it

    def __init__(self) -> None:
        self._calls: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Calls] = weakref.WeakKeyDictionary()
        self._all = 0

    def after(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step ends with this call."""
        self._all += 1
        mine = self._calls.setdefault(optimizer, _Calls(last=self._all))
        mine.count += 1
        mine.gap = self._all - mine.last
        mine.last = self._all
        regular = [calls for calls in self._calls.values() if self._is_regular(calls)]
        return mine in regular and all(mine.count <= other.count for other in regular)

    def _is_regular(self, calls: _Calls) -> bool:
        return calls.gap <= self.SELDOM and self._all - calls.last <= self.SELDOM
