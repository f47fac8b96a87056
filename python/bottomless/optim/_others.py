"""SGD, Adagrad and Lion."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ._base import FusedOptimizer, check_betas, check_rates
from ._gradients import SUFFIX


class SGD(FusedOptimizer):
    """torch.optim.SGD's rule and arguments."""

    _states = {"momentum_buffer": True}

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        state_dtype: torch.dtype | str = torch.float32,
        master_weights: bool = True,
        max_norm: float | None = None,
        skip_nonfinite: bool = False,
    ) -> None:
        check_rates(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = dict(
            lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
            maximize=maximize, foreach=foreach, differentiable=differentiable, fused=fused,
        )  # fmt: skip
        super().__init__(params, defaults, state_dtype, master_weights, max_norm, skip_nonfinite)

    def _begin(self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, Any]) -> None:
        super()._begin(group, parameter, state)
        if group["momentum"] == 0:
            for name in ("momentum_buffer", "momentum_buffer" + SUFFIX):
                state.pop(name, None)

    def _update(
        self, group: dict[str, Any], parameter: torch.Tensor, factor: float, scale: torch.Tensor | None
    ) -> None:
        state = self.state[parameter]
        if state and group["momentum"] != 0 and "momentum_buffer" not in state:  # there was no momentum so far
            self._add_states(group, parameter, state)
            group = {**group, "dampening": 0}  # a buffer begins as the whole gradient
        super()._update(group, parameter, factor, scale)

    def _operator(self) -> Callable[..., Any]:
        return torch.ops.bottomless.sgd_

    def _rule(self, group: dict[str, Any]) -> dict[str, Any]:
        names = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")
        return {"lr": float(group["lr"])} | {name: group[name] for name in names}


class Adagrad(FusedOptimizer):
    """torch.optim.Adagrad's rule and arguments."""

    _states = {"sum": False}

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        state_dtype: torch.dtype | str = torch.float32,
        master_weights: bool = True,
        max_norm: float | None = None,
        skip_nonfinite: bool = False,
    ) -> None:
        check_rates(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps, start=initial_accumulator_value)
        defaults = dict(
            lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay, maximize=maximize, foreach=foreach,
            initial_accumulator_value=initial_accumulator_value, differentiable=differentiable, fused=fused,
        )  # fmt: skip
        super().__init__(params, defaults, state_dtype, master_weights, max_norm, skip_nonfinite)

    def _start(self, group: dict[str, Any]) -> float:
        return group["initial_accumulator_value"]

    def _operator(self) -> Callable[..., Any]:
        return torch.ops.bottomless.adagrad_

    def _rule(self, group: dict[str, Any]) -> dict[str, Any]:
        names = ("lr_decay", "eps", "weight_decay", "maximize")
        return {"lr": float(group["lr"])} | {name: group[name] for name in names}


class Lion(FusedOptimizer):
    """Lion (Chen et al., 2023): the sign of an average of gradients, with decoupled weight decay; one state."""

    _states = {"exp_avg": True}

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype | str = torch.float32,
        master_weights: bool = True,
        max_norm: float | None = None,
        skip_nonfinite: bool = False,
    ) -> None:
        check_rates(lr=lr, weight_decay=weight_decay)
        check_betas(betas)
        defaults = dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)
        super().__init__(params, defaults, state_dtype, master_weights, max_norm, skip_nonfinite)

    def _operator(self) -> Callable[..., Any]:
        return torch.ops.bottomless.lion_

    def _rule(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {
            "lr": float(group["lr"]),
            "beta1": beta1,
            "beta2": beta2,
            "weight_decay": group["weight_decay"],
            "maximize": group["maximize"],
        }
