"""Adam and AdamW."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ._base import FusedOptimizer, check_betas, check_rates


class Adam(FusedOptimizer):
    """torch.optim.Adam's rule and arguments."""

    _states = {"exp_avg": True, "exp_avg_sq": False}
    _decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        state_dtype: torch.dtype | str = torch.float32,
        master_weights: bool = True,
        max_norm: float | None = None,
        skip_nonfinite: bool = False,
    ) -> None:
        check_rates(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        defaults = dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize, foreach=foreach,
            capturable=capturable, differentiable=differentiable, fused=fused, decoupled_weight_decay=self._decoupled,
        )  # fmt: skip
        super().__init__(params, defaults, state_dtype, master_weights, max_norm, skip_nonfinite)

    def _operator(self) -> Callable[..., Any]:
        return torch.ops.bottomless.adam_

    def _rule(self, group: dict[str, Any]) -> dict[str, Any]:
        return {
            "lr": float(group["lr"]),
            "beta1": float(group["betas"][0]),
            "beta2": float(group["betas"][1]),
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "decoupled": group.get("decoupled_weight_decay", self._decoupled),
            "maximize": group["maximize"],
        }


class AdamW(Adam):
    """torch.optim.AdamW's rule and arguments."""

    _decoupled = True

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False, **options: Any) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
