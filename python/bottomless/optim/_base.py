"""What all optimizers have in common: formats of states, clipping, steps left out, what is saved."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from typing import Any, Callable, Iterable

import torch
from torch.autograd.graph import increment_version
from torch.utils.weak import WeakTensorKeyDictionary

from ._gradients import SUFFIX, SquaresInBackward, check_parameter, part_of_rows, runs_of_rows, square_sum


class FusedOptimizer(torch.optim.Optimizer):
    """What all have in common: formats of states, clipping, steps left out, what is saved.

    What a script writes to a parameter of 16 bits between steps goes into its master weights at the next one. Writes
    through ``.data`` are not seen, and the next step undoes them.
    """

    # Name of each state, and whether it has a sign.
    _states: dict[str, bool] = {}
    _sum_over_ranks: Callable[[float], float] | None = None  # where gradients are sharded
    _step_supports_amp_scaling = True  # a GradScaler leaves scale and verdict to step()

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        state_dtype: torch.dtype | str,
        master_weights: bool,
        max_norm: float | None,
        skip_nonfinite: bool,
    ) -> None:
        if state_dtype not in (torch.float32, torch.bfloat16, "8bit"):
            raise ValueError(f"state_dtype {state_dtype}: must be torch.float32, torch.bfloat16 or '8bit'")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm {max_norm}: must be above 0")
        check_options(defaults)
        self._formats = (state_dtype, master_weights)
        self._max_norm = max_norm
        self._skip_nonfinite = skip_nonfinite
        self._forget()
        super().__init__(params, defaults)

    def _forget(self) -> None:
        """What is not saved."""
        self._squares = SquaresInBackward()
        self._versions = WeakTensorKeyDictionary()  # of parameters with master weights, as the last update left them

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            check_options(param_group)
        super().add_param_group(param_group)

    @property
    def needs_all_gradients(self) -> bool:
        """Whether no parameter can be updated before all gradients are there."""
        return self._max_norm is not None or self._skip_nonfinite

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_formats", "_max_norm", "_skip_nonfinite")
        saved = super().__getstate__() | {name: getattr(self, name) for name in ours}
        # Codes and scales are views of one storage, of two types: torch.save refuses that.
        saved["state"] = defaultdict(dict)
        for parameter, state in self.state.items():
            codes = [name for name in self._states if name + SUFFIX in state]
            apart = {key: state[key].clone() for name in codes for key in (name, name + SUFFIX)}
            saved["state"][parameter] = {**state, **apart}
        return saved

    @torch.no_grad()
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()
        for parameter, its in self.state.items():
            for name, has_sign in self._states.items():
                if name + SUFFIX in its:
                    codes, scales = torch.ops.bottomless.new_codes(parameter, has_sign, 0.0)
                    its[name], its[name + SUFFIX] = codes.copy_(its[name]), scales.copy_(its[name + SUFFIX])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found is not None and found.item() != 0:
            self._complain()
            return loss
        factor = self._clip_factor(scale)
        if factor is None:
            self._complain()
            return loss
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter, factor, scale)
        return loss

    def _check_parameters(self) -> None:
        """Before anything changes."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    check_parameter(parameter, has_codes=self._formats[0] == "8bit")

    def _update(self, group: dict[str, Any], parameter: torch.Tensor, factor: float, scale: torch.Tensor | None) -> None:
        state = self.state[parameter]
        if not state:
            self._begin(group, parameter, state)
        else:
            self._follow_script(parameter, state)
        state["step"] += 1
        try:
            self._apply(group, parameter, state, factor, scale)
        except BaseException:
            state["step"] -= 1
            raise
        increment_version(parameter)  # else autograd would not notice that a graph's weight is another one
        if "master" in state:
            self._versions[parameter] = parameter._version

    def _follow_script(self, parameter: torch.Tensor, state: dict[str, Any]) -> None:
        """Takes over into the master weights what somebody else wrote to the parameter since the last update."""
        master = state.get("master")
        if master is None or self._versions.get(parameter) == parameter._version:
            return
        if not torch.equal(master.to(parameter.dtype), parameter):
            master.copy_(parameter)

    def _apply(
        self,
        group: dict[str, Any],
        parameter: torch.Tensor,
        state: dict[str, Any],
        factor: float,
        scale: torch.Tensor | None,
    ) -> None:
        grad = parameter.grad
        arrays = {"master": state.get("master")} | {
            name: state.get(name) for state_name in self._states for name in (state_name, state_name + SUFFIX)
        }
        if grad.is_sparse:
            for rows, values in runs_of_rows(grad.coalesce()):
                parts = {name: part_of_rows(name, array, rows, parameter) for name, array in arrays.items()}
                self._call(group, parameter[rows], values, parts, state, factor, scale)
            return
        if grad.stride() != parameter.stride():
            grad = torch.empty_like(parameter, dtype=grad.dtype).copy_(grad)
        self._call(group, parameter, grad, arrays, state, factor, scale)

    def _call(
        self,
        group: dict[str, Any],
        parameter: torch.Tensor,
        grad: torch.Tensor,
        arrays: dict[str, torch.Tensor | None],
        state: dict[str, Any],
        factor: float,
        scale: torch.Tensor | None,
    ) -> None:
        rounding = {"stochastic": self._formats[0] is torch.bfloat16}
        scaling = {"grad_factor": factor, "grad_scale": scale}
        self._operator()(parameter, grad, *arrays.values(), state["step"], **self._rule(group), **rounding, **scaling)

    def _operator(self) -> Callable[..., Any]:
        raise NotImplementedError

    def _rule(self, group: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _begin(self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, Any]) -> None:
        _, master_weights = self._formats
        state["step"] = torch.zeros((), dtype=torch.float32)
        if master_weights and parameter.dtype is not torch.float32:
            state["master"] = parameter.detach().to(torch.float32)
        self._add_states(group, parameter, state)

    def _add_states(self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, Any]) -> None:
        dtype, _ = self._formats
        for name, has_sign in self._states.items():
            if dtype == "8bit":
                new_codes = torch.ops.bottomless.new_codes
                state[name], state[name + SUFFIX] = new_codes(parameter, has_sign, self._start(group))
            else:
                state[name] = torch.full_like(parameter, self._start(group), dtype=dtype)

    def _start(self, group: dict[str, Any]) -> float:
        """What each element of a state is before the first step."""
        return 0.0

    def _gradients(self) -> Iterable[tuple[str, torch.Tensor]]:
        for at, group in enumerate(self.param_groups):
            names = group.get("param_names") or [f"number {i} of group {at}" for i in range(len(group["params"]))]
            for name, parameter in zip(names, group["params"]):
                if parameter.grad is not None:
                    yield f"{name}, shape {tuple(parameter.shape)}", parameter.grad

    def _clip_factor(self, scale: torch.Tensor | None) -> float | None:
        """What gradients are multiplied with; None if the step is to be left out."""
        if not self.needs_all_gradients:
            return 1.0
        self._squares.listen(parameter for group in self.param_groups for parameter in group["params"])
        squares = sum(square_sum(grad) for _, grad in self._gradients())
        norm = math.sqrt(squares if self._sum_over_ranks is None else self._sum_over_ranks(squares))
        if self._skip_nonfinite and not math.isfinite(norm):
            return None
        if self._max_norm is None:
            return 1.0
        factor = self._max_norm / (norm / (1.0 if scale is None else scale.item()) + 1e-6)
        return 1.0 if factor > 1.0 else factor  # NaN stays, as with torch

    def _complain(self) -> None:
        for name, grad in self._gradients():
            if not math.isfinite(square_sum(grad)):
                warnings.warn(f"bottomless.optim: a step was left out: the gradient of parameter {name} is not finite")
                return

    def state_dict(self) -> dict[str, Any]:
        """As torch's optimizer of the same name has it, with states in float32; master weights are beside them."""
        saved = super().state_dict()
        for number, state in saved["state"].items():
            plain = {key: value for key, value in state.items() if not key.endswith(SUFFIX)}
            for name in self._states:
                if name + SUFFIX in state:
                    values = torch.empty_like(state[name], dtype=torch.float32)
                    plain[name] = torch.ops.bottomless.decode_(values, state[name], state[name + SUFFIX])
                elif name in state:
                    plain[name] = state[name].to(torch.float32)
            saved["state"][number] = plain
        return saved

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """One of this class or of torch's; states get the format that this optimizer was made with."""
        for group in state_dict["param_groups"]:
            check_options(group)
        groups = [{**self.defaults, **group} for group in state_dict["param_groups"]]
        self._check_shapes(groups, state_dict["state"])
        super().load_state_dict({"state": {}, "param_groups": groups})
        dtype, master_weights = self._formats
        numbers = [number for group in groups for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters):
            saved = state_dict["state"].get(number)
            if not saved:
                continue
            state = dict(saved)
            state["step"] = torch.tensor(float(saved.get("step", 1)), dtype=torch.float32)
            for name, has_sign in self._states.items():
                if saved.get(name) is None:
                    state.pop(name, None)
                    continue
                value = torch.empty_like(parameter, dtype=torch.float32).copy_(saved[name])
                if dtype == "8bit":
                    codes, scales = torch.ops.bottomless.new_codes(parameter, has_sign, 0.0)
                    torch.ops.bottomless.encode_(codes, scales, value)
                    state[name], state[name + SUFFIX] = codes, scales
                else:
                    state[name] = value.to(dtype)
            state.pop("master", None)
            if master_weights and parameter.dtype is not torch.float32:
                state["master"] = parameter.detach().to(torch.float32)
                if saved.get("master") is not None:
                    state["master"].copy_(saved["master"])
            self.state[parameter] = state

    def _check_shapes(self, groups: list[dict[str, Any]], states: dict[int, dict[str, Any]]) -> None:
        for saved, group in zip(groups, self.param_groups):
            for number, parameter in zip(saved["params"], group["params"]):
                wanted = self._shapes(parameter)
                for name, value in states.get(number, {}).items():
                    if name in wanted and value is not None and value.shape != wanted[name]:
                        what = f"{name} of shape {tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}"
                        raise ValueError(f"bottomless.optim: load_state_dict: {what}: the state is another model's")

    def _shapes(self, parameter: torch.Tensor) -> dict[str, torch.Size]:
        """What each state's shape must be."""
        return {name: parameter.shape for name in (*self._states, "master")}


def check_options(options: dict[str, Any]) -> None:
    for name in ("amsgrad", "capturable", "differentiable"):
        if options.get(name):
            raise ValueError(f"{name}=True is not known to bottomless.optim; torch.optim has it")


def check_rates(**rates: float) -> None:
    for name, value in rates.items():
        if not float(value) >= 0:
            raise ValueError(f"Invalid {name}: {value}")


def check_betas(betas: tuple[float, float]) -> None:
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"Invalid betas: {betas}")
