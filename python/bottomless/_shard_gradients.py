"""Gradients of a sharded model: from backward passes to the shares that the optimizer sees."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable

import torch

from ._sharded_gradient import ShardedGradient

if TYPE_CHECKING:
    from ._shard import Sharded

_grad = torch.Tensor.grad  # the plain attribute, under the one of Slice


class Slice(torch.nn.Parameter):
    """This rank's share of a parameter: what the optimizer updates. Looking at its gradient has it reduced first."""

    _gradients: Gradients | None

    @staticmethod
    def __new__(cls, data: torch.Tensor, requires_grad: bool) -> Slice:
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made._gradients = None
        return made

    def __init__(self, *_: Any) -> None:
        pass

    @property
    def grad(self) -> torch.Tensor | None:  # type: ignore[override]
        if self._gradients is not None:
            self._gradients.look()
        return _grad.__get__(self)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _grad.__set__(self, value)

    def __reduce_ex__(self, protocol: int) -> Any:
        return torch.nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(protocol)


class Gradients:
    """Of all parameters; each is known by its number."""

    def __init__(self, sharded: Sharded) -> None:
        self._sharded = sharded
        self._core = sharded._core
        self._parameters = sharded._parameters
        self._slices = sharded._slices
        self.syncs = True
        self._local: dict[int, torch.Tensor] = {}  # that are not given away yet
        self._unreduced = False
        self._norms: torch.Tensor | None = None
        self._scales: dict[int, float] = {}  # what they were multiplied with since they were reduced
        for own in self._slices:
            own._gradients = self
        for i, parameter in enumerate(self._parameters):
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            wanted = parameter.requires_grad
            parameter.requires_grad_(True)  # frozen ones may be thawed later
            parameter.register_post_accumulate_grad_hook(lambda parameter, i=i: self._final(i, parameter))
            parameter.requires_grad_(wanted)

    # Backward passes.

    @torch.no_grad()
    def _final(self, index: int, parameter: torch.Tensor) -> None:
        if self._sharded._closed:
            return
        grad = parameter.grad
        if not isinstance(grad, ShardedGradient):
            self._begin()
            self.add(index, grad)
            parameter.grad = ShardedGradient(parameter, self, index)
        if self.syncs and self._sharded.stage >= 2:
            self._core.contribute(index, self._local.pop(index))

    def _begin(self) -> None:
        """Whoever has no gradient yet has been zeroed, or never had one; on other ranks it may get one."""
        for i, parameter in enumerate(self._parameters):
            if parameter.grad is None and parameter.requires_grad:
                _grad.__set__(self._slices[i], None)
                parameter.grad = ShardedGradient(parameter, self, i)

    def add(self, index: int, gradient: torch.Tensor) -> None:
        """What backward has made."""
        self._unreduced = True
        self._norms = None
        before = self._local.get(index)
        # Not in place: backward may give the same tensor to others.
        self._local[index] = gradient if before is None else before + gradient

    # Steps.

    @torch.no_grad()
    def begin_step(self) -> None:
        """Waits for all ranks; from then on shares have the means of all that was contributed to this step."""
        touched = [i for i, own in enumerate(self._slices) if own.numel() > 0 and _grad.__get__(own) is not None]
        self.take(self._core.begin_step(touched))
        self._unreduced = False

    def end_step(self) -> None:
        self._norms = None
        self._scales.clear()

    def give_away(self) -> None:
        for index in sorted(self._local):
            self._core.contribute(index, self._local.pop(index))

    @torch.no_grad()
    def look(self) -> None:
        if self._unreduced:
            self._unreduced = False
            self.give_away()
            self.take(self._core.reduce())

    @torch.no_grad()
    def take(self, sums: list[torch.Tensor | None]) -> None:
        for own, new in zip(self._slices, sums):
            if new is None:
                continue
            new = new.view_as(own)
            grad = _grad.__get__(own)
            if grad is None:
                _grad.__set__(own, new)
            else:
                grad.add_(new)

    def forget(self) -> None:
        self._local.clear()
        self._unreduced = False
        for own in self._slices:
            _grad.__set__(own, None)

    # What a script does with them.

    def zero(self, index: int) -> None:
        self._local.pop(index, None)
        grad = self._slices[index].grad
        if grad is not None:
            grad.zero_()
        self._norms = None

    @torch.no_grad()
    def on_share(self, index: int, change: Callable[[torch.Tensor], Any]) -> None:
        grad = self._slices[index].grad
        if grad is not None:
            change(grad)
        self._norms = None

    def note_scale(self, index: int, factor: float) -> None:
        self._scales[index] = self._scales.get(index, 1.0) * factor

    def scales(self) -> list[float]:
        return [self._scales.get(i, 1.0) for i in range(len(self._slices))]

    @torch.no_grad()
    def scale(self, factors: list[float]) -> None:
        for own, factor in zip(self._slices, factors):
            grad = _grad.__get__(own)
            if grad is not None and factor != 1.0:
                grad.mul_(factor)

    @torch.no_grad()
    def norm(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        if self._norms is None:
            squares = torch.zeros(len(self._slices), dtype=torch.float64)
            for i, own in enumerate(self._slices):
                grad = own.grad
                if grad is not None and grad.numel() > 0:
                    if grad.dtype in (torch.float32, torch.bfloat16, torch.float16):
                        squares[i] = torch.ops.bottomless.sum_of_squares(grad).item()
                    else:
                        squares[i] = math.pow(torch.linalg.vector_norm(grad).item(), 2)
            self._norms = self._core.sum_over_ranks(squares).sqrt()
        return self._norms[index].to(dtype)

    def sum_with_others(self) -> None:
        """Takes part in what torch.nn.utils.clip_grad_norm_ asks for on other ranks."""
        self._norms = None
        self.norm(0, torch.float64)

    @torch.no_grad()
    def full(self, index: int) -> torch.Tensor:
        own = self._slices[index]
        grad = own.grad
        return self._sharded._gathered(
            index, grad if grad is not None else torch.zeros_like(own), self._parameters[index]
        )
