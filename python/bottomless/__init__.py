"""Run an unmodified PyTorch program inside a memory limit, with the same bits as without one.

    import bottomless

    runtime = bottomless.limit(memory="4GiB", disk="/nvme/scratch")
    ...  # ordinary PyTorch code
    print(runtime.stats())

A script need not even import it: ``bottomless run --memory 4GiB --disk /nvme/scratch script.py``.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
from typing import Any, Iterable, Sequence, Union

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _core
from ._step_ends import StepEnds
from ._update_in_backward import UpdateInBackward

__all__ = ["DiskError", "Runtime", "limit", "load_checkpoint", "optim", "precision", "shard", "step"]
__version__ = "0.1.0"

_Directory = Union[str, "os.PathLike[str]"]
_current: Runtime | None = None


class DiskError(OSError, RuntimeError):
    """What a disk has done to an operator: ``errno`` says what. A ``RuntimeError``, too, as all that operators raise."""


class Runtime:
    """A memory limit in force. Made by :func:`limit`; also a context manager that ends it.

    Tensors may outlive it: they stay managed, within its limit, until they are freed.
    """

    def __init__(
        self,
        memory: int | str,
        disk: _Directory | Sequence[_Directory],
        disk_limit: int | str | None,
        checksums: bool,
        deferred_updates: bool,
        update_in_backward: int,
        recorded: bool,
    ) -> None:
        if not isinstance(update_in_backward, int) or update_in_backward < 0:
            raise ValueError(f"bottomless: update_in_backward {update_in_backward}: must be a number of backward passes")
        directories = [disk] if isinstance(disk, (str, os.PathLike)) else list(disk)
        self._core: _core.Runtime | None = _core.Runtime(
            memory=_core.automatic_memory() if memory == "auto" else _bytes(memory, "memory"),
            disk=[os.fspath(directory) for directory in directories],
            disk_limit=None if disk_limit is None else _bytes(disk_limit, "disk_limit"),
            # In backward there is enough computing to hide an update's bytes; waiting, it would keep its gradient.
            deferred_updates=deferred_updates and not update_in_backward,
            recorded=recorded,
            checksums=checksums,
        )
        self._update_in_backward = UpdateInBackward(int(update_in_backward)) if update_in_backward else None
        self._last_stats: dict[str, Any] = {}
        self._steps_marked_by_hand = False
        self._step_ends = StepEnds()
        self._steps_left: int | None = None
        # torch's own global hook: every optimizer's step() marks a step, with no change in the script.
        self._hook = register_optimizer_step_post_hook(self._after_optimizer_step)

    def stats(self) -> dict[str, Any]:
        """Counters since the limit began: ``limit_bytes``, ``peak_bytes``, ``read_bytes``, ``evictions``, ...

        The same keys as every ``--json`` of the command line; after :meth:`close`, the values at its time.
        """
        if self._core is None:
            return self._last_stats
        return json.loads(self._core.stats_json())

    def step(self) -> None:
        """Mark the end of a training step. Optimizers of torch do it by themselves; a call by hand replaces that."""
        self._steps_marked_by_hand = True
        self._end_step()

    def report(self, file: _Directory) -> None:
        """Write the last step as one HTML page: memory, disk, waiting, and what another limit would make of it."""
        self._require_open().report(os.fspath(file))

    def trace(self, file: _Directory) -> None:
        """Write the last step as a file that Perfetto shows and ``bottomless plan`` explains."""
        self._require_open().trace(os.fspath(file))

    def close(self) -> None:
        """Stop managing new tensors. Existing ones stay managed until they are freed."""
        global _current
        if self._core is None:
            return
        self._last_stats = self.stats()
        self._hook.remove()
        if self._update_in_backward is not None:
            self._update_in_backward.close()
        self._core = None
        if _current is self:
            _current = None

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _require_open(self) -> _core.Runtime:
        if self._core is None:
            raise RuntimeError("bottomless: this limit has been closed; set a new one with bottomless.limit(...)")
        return self._core

    def _after_optimizer_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self._update_in_backward is not None and self._update_in_backward.stepping:
            return  # one parameter of many
        core = self._require_open()
        for group in optimizer.param_groups:
            _label(core, group["params"], "parameter")
            _label(core, (parameter.grad for parameter in group["params"]), "gradient")
        for state in optimizer.state.values():
            _label(core, state.values(), "state")
        if self._step_ends.after(optimizer) and not self._steps_marked_by_hand:
            self._end_step()

    def _end_step(self) -> None:
        self._require_open().step()
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                raise SystemExit(0)

    def _end_after(self, steps: int) -> None:
        """The program ends by itself once it has done so many more steps."""
        self._steps_left = steps


def limit(
    memory: int | str,
    disk: _Directory | Sequence[_Directory],
    disk_limit: int | str | None = None,
    checksums: bool = False,
    deferred_updates: bool = True,
    update_in_backward: int = False,
    recorded: bool = False,
) -> Runtime:
    """Put the process under a memory limit, from now on and for all threads.

    ``memory`` is what all CPU tensors together may take, in bytes or as text ("4GiB"), or "auto" for most of what the
    machine and its environment leave this process; ``disk`` one directory or several for what does not fit,
    with {rank} or {local_rank} in them for this process's numbers under torchrun or mpirun;
    ``disk_limit`` the most that may be used there; with ``checksums`` a disk that gives back something else than was
    written is an error. An optimizer's update of a parameter may wait until the parameter is next touched, with the same
    bits; ``deferred_updates=False`` has it done at once. With ``update_in_backward`` each parameter is stepped as soon as
    its gradient is final, so that no gradient has to be kept; a number says how many backward passes accumulate one.
    Refused where the script clips gradients, or accumulates them over more passes.
    ``recorded`` keeps what :meth:`Runtime.report` and :meth:`Runtime.trace` tell. One limit is in force at a time.
    """
    global _current
    _current = Runtime(memory, disk, disk_limit, checksums, deferred_updates, update_in_backward, recorded)
    return _current


def step() -> None:
    """Mark the end of a training step, for loops that use no optimizer of torch."""
    if _current is None:
        raise RuntimeError("bottomless: no limit is in force; set one with bottomless.limit(...)")
    _current.step()


def __getattr__(name: str) -> Any:
    if name == "shard":  # torch.distributed is not everybody's
        return importlib.import_module("._shard", __name__).shard
    if name == "load_checkpoint":
        return importlib.import_module("._shard_checkpoint", __name__).load_checkpoint
    if name in ("optim", "precision"):  # only now: `python -m bottomless.precision` would find itself imported already
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _bytes(size: int | str, name: str) -> int:
    if isinstance(size, str):
        try:
            return _core.parse_bytes(size)
        except ValueError as error:
            raise ValueError(str(error).replace("bottomless: ", f"bottomless: {name}: ", 1)) from None
    wanted = "a number of bytes from 0 to 2**63 - 1, or text such as '4GiB'"
    try:
        number = operator.index(size)
    except TypeError:
        raise TypeError(f"bottomless: {name}={size!r}: must be {wanted}") from None
    if isinstance(size, bool) or not 0 <= number < 1 << 63:
        raise ValueError(f"bottomless: {name}={size!r}: must be {wanted}")
    return number


def _label(core: _core.Runtime, tensors: Iterable[object], kind: str) -> None:
    for tensor in tensors:
        # Wrapper subclasses (DTensor and the like) have no storage of their own.
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided:
            # Asking for its storage would make an object that keeps the storage alive.
            core.label(tensor.data_ptr(), kind)
