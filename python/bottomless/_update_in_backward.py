"""The option ``update_in_backward``: every parameter is stepped as soon as its gradient is final, inside backward.

So gradients need not be kept. The optimizer is the script's own, called for one parameter at a time; the script's
``optimizer.step()`` then finds nothing left to do. Where gradients accumulate, it is said over how many backward passes.
The bits are the same if nothing happens to gradients, parameters and options between backward and ``step()``. So the
first step of an optimizer runs as always, the next gradient of each parameter is only watched, and a script that needs its
gradients longer is refused, with the reason. Nobody can see that a script only reads gradients, or begins to clip them
later: it finds none. Nor that an optimizer draws random numbers from a generator of its own, or after its second step.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class UpdateInBackward:
    """Updates in backward, for all optimizers, until :meth:`close`. It uses torch's hooks and patches nothing.

    The ``passes``-th gradient of a parameter since the last step() is the one it is stepped with. One that got fewer is
    left to the script's step().
    """

    def __init__(self, passes: int = 1) -> None:
        self._passes = passes
        self._known = WeakTensorKeyDictionary()  # parameter: _Parameter
        self._options: weakref.WeakKeyDictionary[Optimizer, Any] = weakref.WeakKeyDictionary()  # in backward, in step()
        self._draws: weakref.WeakKeyDictionary[Optimizer, _Draws] = weakref.WeakKeyDictionary()
        self._here = threading.local()
        self._one_at_a_time = threading.Lock()  # backward has a thread for every device
        before = register_optimizer_step_pre_hook(self._before_step)
        self._hooks = [before, register_optimizer_step_post_hook(self._after_step)]

    @property
    def stepping(self) -> bool:
        """Whether this thread is in a ``step()`` for one parameter, called by us and not by the script."""
        return getattr(self._here, "stepping", False)

    def close(self) -> None:
        """Remove all hooks; training goes on without them."""
        for hook in self._hooks + [known.handle for known in self._known.values()]:
            hook.remove()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.stepping:
            return
        _refuse_special_steps(optimizer, args, kwargs)
        options = _options(optimizer)
        if changed := _difference(self._options.get(optimizer, options), options):
            raise _refusal(optimizer, f"{changed} changed between backward and the update of step(), too late for ours")
        self._options[optimizer] = options
        self._draws.setdefault(optimizer, _Draws()).before_step()
        for place, parameter in _parameters(optimizer):
            known = self._known.get(parameter)
            owner = known.optimizer() if known else None
            if owner is optimizer:
                known.check(optimizer, parameter, self._passes)
                known.place = place
            elif owner is not None:
                raise _refusal(optimizer, f"{_name(parameter)} has a second optimizer, which needs its gradient, too")
            elif parameter.is_leaf and parameter.requires_grad:
                self._known[parameter] = _Parameter(optimizer, place)
                self._listen(parameter)

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.stepping:
            return
        if optimizer in self._draws and self._draws[optimizer].after_step():
            raise _refusal(optimizer, "its step() draws random numbers, which parameters would get in another order")
        common = _difference(self._options.pop(optimizer, []), _options(optimizer))
        if common or not all(isinstance(key, torch.Tensor) for key in optimizer.state):
            what = f"its step() changes what parameters have in common ({common or 'state'})"
            raise _refusal(optimizer, f"{what}, which must happen once in a step and not once for each of them")
        for _, parameter in _parameters(optimizer):
            if (known := self._known.get(parameter)) is not None:
                grad = parameter.grad
                known.left = None if grad is None else (TensorWeakRef(grad), grad._version)

    def _listen(self, parameter: torch.Tensor) -> None:
        known = self._known[parameter]
        hook = functools.partial(self._after_gradient, known)  # keeps neither parameter nor optimizer alive
        known.handle = parameter.register_post_accumulate_grad_hook(hook)

    def _after_gradient(self, known: _Parameter, parameter: torch.Tensor) -> None:
        """In backward, when ``parameter.grad`` is final."""
        optimizer, grad = known.optimizer(), parameter.grad
        if optimizer is None or grad is None or not known.is_in_place(optimizer, parameter):
            return  # dropped, used up by a hook of the script, or moved: what is there is left to step()
        if 0 < known.fired < self._passes and not known.goes_on(grad):
            known.fired = 0
        known.fired += 1
        if known.fired > self._passes and known.taken_over:
            raise _accumulates(optimizer, parameter, self._passes, " (it was already updated)")
        if grad.requires_grad:
            raise _refusal(optimizer, "backward(create_graph=True) wants gradients that stay")
        if optimizer not in self._options:
            self._options[optimizer] = _options(optimizer)
        if known.fired == 1:
            known.compare(optimizer, parameter, grad, self._passes)
        known.last = (TensorWeakRef(grad), grad._version)
        if next(reversed(parameter._post_accumulate_grad_hooks)) != known.handle.id:
            known.handle.remove()  # hooks that came later shall find the gradient: step() takes it this time
            self._listen(parameter)
            return
        if known.taken_over and known.fired == self._passes:
            self._step_alone(optimizer, parameter, known.place[0])
        known.seen = _look(parameter)

    def _step_alone(self, optimizer: Optimizer, parameter: torch.Tensor, index_of_group: int) -> None:
        with self._one_at_a_time:
            groups = optimizer.param_groups
            group = groups[index_of_group]
            parameters = group["params"]
            version = parameter._version
            self._here.stepping = True
            try:
                group["params"], optimizer.param_groups = [parameter], [group]
                optimizer.step()
            finally:
                group["params"], optimizer.param_groups = parameters, groups
                self._here.stepping = False
        if parameter._version == version:  # torch's fused optimizers: autograd shall notice if backward needs it still
            increment_version(parameter)
        parameter.grad = None


class _Draws:
    """Whether a step() draws random numbers: the first two are watched, since another thread may draw during one."""

    def __init__(self) -> None:
        self._before: list[torch.Tensor] = []  # a step() may call that of its class
        self._left, self._drew = 2, 0

    def before_step(self) -> None:
        if self._left > 0:
            self._before.append(torch.get_rng_state())

    def after_step(self) -> bool:
        """Whether it does."""
        if not self._before:
            return False
        before = self._before.pop()
        if not self._before:  # the outermost
            self._left -= 1
            self._drew += not torch.equal(before, torch.get_rng_state())
        return self._drew == 2


class _Parameter:
    """What is known of a parameter of an optimizer, without keeping either alive."""

    handle: RemovableHandle

    def __init__(self, optimizer: Optimizer, place: tuple[int, int]) -> None:
        self.optimizer = weakref.ref(optimizer, lambda _: self.handle.remove())
        self.place = place  # group, and index in it
        self.taken_over = False  # whether backward steps it
        self.fired = 0  # gradients since the last step()
        self.left: tuple[TensorWeakRef, int] | None = None  # the gradient after the last step(), and its version
        self.last: tuple[TensorWeakRef, int] | None = None  # the gradient after the last pass, and its version
        self.seen: Any = None  # how backward left the parameter
        self.zeros: torch.Tensor | None = None  # like the gradient, if zero_grad() keeps it

    def is_in_place(self, optimizer: Optimizer, parameter: torch.Tensor) -> bool:
        (group, index), groups = self.place, optimizer.param_groups
        parameters = groups[group]["params"] if group < len(groups) else []
        return index < len(parameters) and parameters[index] is parameter

    def goes_on(self, grad: torch.Tensor) -> bool:
        """In backward: whether this pass only added to the last one's gradient. Else the script dropped that one."""
        return self.last is not None and self.last[0]() is grad and grad._version == self.last[1] + 1

    def compare(self, optimizer: Optimizer, parameter: torch.Tensor, grad: torch.Tensor, passes: int) -> None:
        """In backward: what became of the gradient that the last step() left."""
        if self.left is not None and self.left[0]() is grad:
            if grad._version == self.left[1] + 1:  # changed by this backward alone
                raise _accumulates(optimizer, parameter, passes, " (nothing called zero_grad)")
            self.zeros = torch.zeros_like(grad) if grad.is_sparse else grad.new_zeros(()).expand_as(grad)
        elif self.zeros is not None and not grad.is_sparse:
            grad.add_(0)  # it would have been added to zeros, which makes 0 of -0

    def check(self, optimizer: Optimizer, parameter: torch.Tensor, passes: int) -> None:
        """At the script's step(): refuses, or lets backward take over."""
        if self.fired > passes:
            raise _accumulates(optimizer, parameter, passes)
        if self.seen is not None and self.seen != _look(parameter):
            what = f"{_name(parameter)} or its gradient changed between backward and step()"
            raise _refusal(optimizer, f"{what}, as by clipping or a GradScaler, too late for the update")
        self.taken_over = self.taken_over or self.seen is not None
        if self.taken_over and not self.fired and parameter.grad is None and self.zeros is not None:
            parameter.grad = torch.zeros_like(self.zeros)  # what zero_grad(set_to_none=False) would have left
        self.fired, self.seen = 0, None


def _look(parameter: torch.Tensor) -> tuple[Any, ...]:
    """Equal as long as neither the parameter nor its gradient changes."""
    grad, bits = parameter.grad, None
    if grad is None:
        return (parameter._version,)
    if type(grad) is torch.Tensor and grad.layout is torch.strided and not grad.is_complex():
        # The version misses what GradScaler and .data do. The sum may wrap, and needs no memory.
        integers = grad.detach().view(_INTEGERS[grad.element_size()])
        bits = int(integers.sum(dtype=integers.dtype))
    return parameter._version, id(grad), grad._version, bits


def _parameters(optimizer: Optimizer) -> list[tuple[tuple[int, int], torch.Tensor]]:
    groups = enumerate(optimizer.param_groups)
    return [((at, index), parameter) for at, group in groups for index, parameter in enumerate(group["params"])]


def _options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What step() depends on besides parameters and state: the optimizer's numbers and its groups' options."""
    numbers = {name: value for name, value in vars(optimizer).items() if type(value) in (int, float)}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    for group in groups:
        group.update({key: (id(it), it._version) for key, it in group.items() if isinstance(it, torch.Tensor)})
    return [numbers, *groups]


def _difference(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """The names of the options that changed; new groups are no change."""
    changed = {key for old, new in zip(before, after) for key in new if key not in old or old[key] != new[key]}
    return ", ".join(sorted(changed))


def _refuse_special_steps(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args[1:2] not in ((), (None,)) or kwargs.get("closure") is not None:
        raise _refusal(optimizer, "step() is called with a closure, so it runs backward and needs the gradients itself")
    if "grad_scaler" in kwargs or any(getattr(optimizer, it, None) is not None for it in ("grad_scale", "found_inf")):
        raise _refusal(optimizer, "a GradScaler tells step() to change or drop gradients, too late for the update")
    if getattr(optimizer, "needs_all_gradients", False):  # ours, with max_norm or skip_nonfinite
        reason = "it clips by the norm of all gradients, or leaves steps out, and must see all of them before any update"
        raise _refusal(optimizer, reason)
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise _refusal(optimizer, "it has hooks of its own for step(), which would run once for each parameter")


def _accumulates(optimizer: Optimizer, parameter: torch.Tensor, passes: int, remark: str = "") -> RuntimeError:
    most = "one backward" if passes == 1 else f"{passes} backward passes"
    what = f"{_name(parameter)} gets gradients from more than {most} before step(){remark}"
    reason = f"{what}, but is updated with the first {passes}; update_in_backward can be told a larger number of passes"
    return _refusal(optimizer, reason)


def _name(parameter: torch.Tensor) -> str:
    return f"a parameter of shape {tuple(parameter.shape)}"


def _refusal(optimizer: Optimizer, reason: str) -> RuntimeError:
    what = f"bottomless: update_in_backward: {type(optimizer).__name__}: {reason}"
    return RuntimeError(f"{what}; the results would differ from those of the script: leave update_in_backward out")
