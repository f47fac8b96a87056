"""Adafactor."""

from __future__ import annotations

from typing import Any

import torch

from ._base import FusedOptimizer, check_rates

NAMES = ("row_var", "col_var", "variance")


class Adafactor(FusedOptimizer):
    """torch.optim.Adafactor's rule and arguments.

    A matrix has a float32 for each row and each column as its states, so there is no ``state_dtype``. An ``eps[0]`` of
    None is that of the type that is updated: of float32 where there are master weights. An update needs the parameter
    and its gradient in memory as a whole.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        master_weights: bool = True,
        max_norm: float | None = None,
        skip_nonfinite: bool = False,
    ) -> None:
        check_rates(lr=lr, epsilon1=eps[0] or 0.0, epsilon2=eps[1], weight_decay=weight_decay)
        if not beta2_decay <= 0:
            raise ValueError(f"Invalid beta2_decay: {beta2_decay}")
        if not d >= 1:
            raise ValueError(f"Invalid d: {d}")
        defaults = dict(
            lr=lr, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay, foreach=foreach, maximize=maximize
        )  # fmt: skip
        super().__init__(params, defaults, torch.float32, master_weights, max_norm, skip_nonfinite)

    def _check_parameters(self) -> None:
        if any(grad.is_sparse for _, grad in self._gradients()):
            raise RuntimeError("Adafactor does not support sparse gradients")
        super()._check_parameters()

    def _apply(
        self,
        group: dict[str, Any],
        parameter: torch.Tensor,
        state: dict[str, Any],
        factor: float,
        scale: torch.Tensor | None,
    ) -> None:
        # The operator wants row-major tensors; a layout of another kind (channels_last) is copied there and back.
        whole = parameter if parameter.is_contiguous() else parameter.contiguous()
        states = (state.get(name) for name in ("master", *NAMES))
        torch.ops.bottomless.adafactor_(
            whole, parameter.grad.contiguous(), *states, state["step"],
            lr=float(group["lr"]), beta2_decay=group["beta2_decay"], eps1=group["eps"][0], eps2=group["eps"][1],
            d=group["d"], weight_decay=group["weight_decay"], maximize=group["maximize"],
            grad_factor=factor, grad_scale=scale,
        )  # fmt: skip
        if whole is not parameter:
            parameter.copy_(whole)

    def _begin(self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, Any]) -> None:
        super()._begin(group, parameter, state)
        if "master" in state:
            state["master"] = state["master"].contiguous()
        for name, shape in self._shapes(parameter).items():
            if name != "master":
                state[name] = torch.zeros(shape, dtype=torch.float32)

    def _shapes(self, parameter: torch.Tensor) -> dict[str, torch.Size]:
        shape = parameter.shape
        if parameter.dim() > 1:
            states = {"row_var": torch.Size([*shape[:-1], 1]), "col_var": torch.Size([*shape[:-2], 1, shape[-1]])}
        else:
            states = {"variance": shape}
        return super()._shapes(parameter) | states

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """One of this class or of torch's."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name in NAMES:
                if state.get(name) is not None:
                    state[name] = torch.empty(state[name].shape, dtype=torch.float32).copy_(state[name])
            if "master" in state:
                state["master"] = state["master"].contiguous()
