"""Which call of an optimizer's step() ends a step of training, where a program has several optimizers."""

from __future__ import annotations

import collections
import functools
import threading
import weakref

import torch


class _Calls:
    def __init__(self, optimizer: weakref.ref[torch.optim.Optimizer], most: int) -> None:
        self.optimizer = optimizer  # kept, so that its callback comes
        self.last = 0  # number of its last call, counted over all optimizers
        self.recent: collections.deque[int] = collections.deque(maxlen=most + 1)


class StepEnds:
    """Of optimizers that take turns (a generator and its critic, one for each layer), a step ends when all of them have
    been called since the last one did; so that a step is what repeats as a whole."""

    MOST = 8  # calls of one between two calls of another that has a part in the step

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an optimizer may be freed anywhere, also in here
        self._known: dict[int, _Calls] = {}
        self._regular: collections.OrderedDict[int, _Calls] = collections.OrderedDict()  # the last called last
        self._calls = 0
        self._given_up = 0  # who was last called before this, others have gone on without
        self._ended = self._ended_before = 0  # calls that ended the last two steps

    def after(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step ends with this call."""
        with self._lock:
            self._calls += 1
            key = id(optimizer)
            is_new = key not in self._known
            if is_new:
                self._known[key] = _Calls(weakref.ref(optimizer, functools.partial(self._forget, key)), self.MOST)
                self._ended = self._ended_before  # had it been known, the step would not have ended before it
            calls = self._known[key]
            comes_seldom = not is_new and calls.last < self._given_up
            calls.last = self._calls
            calls.recent.append(self._calls)
            if len(calls.recent) > self.MOST:
                self._given_up = max(self._given_up, calls.recent[0])
            if comes_seldom:
                self._regular.pop(key, None)
                return False
            self._regular[key] = calls
            self._regular.move_to_end(key)
            while next(iter(self._regular.values())).last < self._given_up:
                self._regular.popitem(last=False)
            if next(iter(self._regular.values())).last <= self._ended:
                return False
            if not is_new:
                self._ended_before = self._ended
            self._ended = self._calls
            return True

    def _forget(self, key: int, _: object) -> None:
        with self._lock:
            self._known.pop(key, None)
            self._regular.pop(key, None)
