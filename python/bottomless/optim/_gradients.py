"""Gradients: their squares, and the rows of sparse ones."""

from __future__ import annotations

import weakref
from typing import Iterable

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core  # the operators are in it

BLOCK = 256  # elements of an 8-bit state that share a scale
SUFFIX = "_scales"


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a range of memory, in any order: such a layout is what empty_like keeps."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def check_parameter(parameter: torch.Tensor, has_codes: bool) -> None:
    """Refuses what the kernels do not know."""
    for tensor in (parameter, parameter.grad):
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16) or tensor.device.type != "cpu":
            what = f"a parameter or gradient of {tensor.dtype} on {tensor.device}"
            raise TypeError(f"bottomless.optim: {what}: must be float32, bfloat16 or float16 on the CPU; torch.optim has more")
    if parameter.is_sparse or not is_dense(parameter):
        raise ValueError("bottomless.optim: a parameter that is not dense in memory; make it contiguous")
    grad = parameter.grad
    if grad.is_sparse and (grad.sparse_dim() != 1 or grad.dense_dim() != parameter.dim() - 1):
        what = f"a sparse gradient with {grad.sparse_dim()} sparse dimensions and {grad.dense_dim()} dense ones"
        raise ValueError(f"bottomless.optim: {what}: must have one index for each row of the parameter")
    if grad.is_sparse and (not parameter.is_contiguous() or (has_codes and parameter.stride(0) % BLOCK != 0)):
        what = f"a multiple of {BLOCK} elements" if has_codes else "contiguous elements"
        raise ValueError(f"bottomless.optim: a sparse gradient needs a parameter with rows of {what}")


def square_sum(grad: torch.Tensor) -> float:
    """In a fixed order, whatever the limit: the bits are always the same. Infinity, if something is not finite."""
    values = grad.coalesce().values() if grad.is_sparse else grad
    return torch.ops.bottomless.sum_of_squares(values if is_dense(values) else values.contiguous()).item()


class SquaresInBackward:
    """Under a limit, has the squares of a gradient summed when backward has made it and it is still in memory.

    The sum is kept for as long as nobody changes the gradient, so step() need not bring it in for that.
    """

    def __init__(self) -> None:
        self._hooks = WeakTensorKeyDictionary()
        weakref.finalize(self, _remove_all, self._hooks)

    def listen(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter not in self._hooks and parameter.is_leaf and parameter.requires_grad:
                self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(_sum_squares)


def _remove_all(hooks: WeakTensorKeyDictionary) -> None:
    for hook in hooks.values():
        hook.remove()


@torch.no_grad()
def _sum_squares(parameter: torch.Tensor) -> None:
    grad = parameter.grad
    if grad is not None and not grad.is_sparse and _core.is_limited():
        square_sum(grad)


def part_of_rows(name: str, array: torch.Tensor | None, rows: slice, parameter: torch.Tensor) -> torch.Tensor | None:
    if array is None or not name.endswith(SUFFIX):
        return None if array is None else array[rows]
    elements = parameter.stride(0)
    return array[rows.start * elements // BLOCK : rows.stop * elements // BLOCK]


def runs_of_rows(grad: torch.Tensor) -> Iterable[tuple[slice, torch.Tensor]]:
    """Rows that follow each other, so that only what lies there is touched."""
    indices, values = grad.indices()[0].tolist(), grad.values()
    begin = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            yield slice(indices[begin], indices[at - 1] + 1), values[begin:at]
            begin = at
