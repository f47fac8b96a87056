"""A gradient of which each rank has a share, as a tensor of the whole shape: what ``parameter.grad`` is under ``shard``.

Norms are those over all ranks, scaling changes each rank's share, and everything else gathers it first. So scripts clip and
inspect gradients as they always did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from ._shard_gradients import Gradients

aten = torch.ops.aten
# In place, element by element, with the gradient first: each rank does its part.
_ON_SHARES = {
    aten.mul_.Tensor, aten.mul_.Scalar, aten.div_.Tensor, aten.div_.Scalar, aten.nan_to_num_.default,
    aten.clamp_.default, aten.clamp_min_.default, aten.clamp_max_.default,
}  # fmt: skip
_LISTS_ON_SHARES = {
    aten._foreach_mul_.Tensor, aten._foreach_mul_.Scalar, aten._foreach_div_.Tensor, aten._foreach_div_.Scalar,
}  # fmt: skip
_SCALES = {
    aten.mul_.Tensor: lambda factor: factor, aten.mul_.Scalar: lambda factor: factor,
    aten.div_.Tensor: lambda divisor: 1 / divisor, aten.div_.Scalar: lambda divisor: 1 / divisor,
}  # fmt: skip
_ALIASES = {aten.detach.default, aten.alias.default}


class ShardedGradient(torch.Tensor):
    @staticmethod
    def __new__(cls, like: torch.Tensor, gradients: Gradients, index: int) -> ShardedGradient:
        return torch.Tensor._make_wrapper_subclass(
            cls, like.size(), strides=like.stride(), dtype=like.dtype, device=like.device, requires_grad=False
        )

    def __init__(self, like: torch.Tensor, gradients: Gradients, index: int) -> None:
        self._gradients = gradients
        self._index = index

    def __repr__(self) -> str:  # type: ignore[override]
        return f"ShardedGradient(shape={tuple(self.shape)}, dtype={self.dtype}); .full_tensor() gathers it"

    def full_tensor(self) -> torch.Tensor:
        """The mean over all ranks, gathered. All ranks must ask for it."""
        return self._gradients.full(self._index)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func is aten.add_.Tensor and isinstance(first, ShardedGradient):  # autograd accumulates
            first._gradients.add(first._index, args[1])
            return first
        if func in _ALIASES:
            return first
        if func is aten.zero_.default:
            first._gradients.zero(first._index)
            return first
        if func is aten._foreach_zero_.default:
            for gradient in first:
                gradient.zero_()
            return None
        if func in _ON_SHARES:
            first._gradients.on_share(first._index, lambda share: func(share, *args[1:], **kwargs))
            if func in _SCALES and _is_scalar(args[1]):
                first._gradients.note_scale(first._index, _SCALES[func](float(args[1])))
            return first
        if func in _LISTS_ON_SHARES:
            single = getattr(aten, func.overloadpacket.__name__.removeprefix("_foreach_"))
            for gradient in first:
                single(gradient, *args[1:])
            return None
        if func is aten.linalg_vector_norm.default and _is_euclidean(args, kwargs):
            return first._gradients.norm(first._index, kwargs.get("dtype") or first.dtype)
        if func.is_view or not func._schema.is_mutable:
            return func(*tree_map_only(ShardedGradient, ShardedGradient.full_tensor, args),
                        **tree_map_only(ShardedGradient, ShardedGradient.full_tensor, kwargs))  # fmt: skip
        raise RuntimeError(
            f"bottomless: {func} on a gradient that is sharded over ranks: it would change only a gathered copy; work on "
            "the shares in optimizer.param_groups, or on grad.full_tensor()"
        )


def _is_scalar(value: Any) -> bool:
    return not torch.is_tensor(value) or value.dim() == 0


def _is_euclidean(args: Any, kwargs: Any) -> bool:
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    return order == 2 and (len(args) < 3 or args[2] is None) and not (len(args) > 3 and args[3])
