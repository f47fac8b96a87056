"""ZeRO over ranks: ``bottomless.shard(model, optimizer, stage=3)``."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import sys
from typing import Any, Iterator

import torch
import torch.distributed as dist

import bottomless

from . import _core  # torch.classes.bottomless is in it
from . import _shard_checkpoint
from ._shard_following import numbers_of, set_numbers
from ._shard_gradients import Gradients, Slice

# Optimizers that treat elements one by one, so that a share of a parameter is as good as a parameter.
_ELEMENTWISE = {
    "torch.optim": ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"),
    "bottomless.optim": ("SGD", "Adam", "AdamW", "Adagrad", "Lion"),
}


class Sharded:
    """A model whose parameters, gradients and optimizer states are spread over the ranks. Made by :func:`shard`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        stage: int,
        group: dist.ProcessGroup | None,
        deadline: float,
        broadcast_buffers: bool,
        quantised_weights: bool,
        quantised_gradients: bool,
        node_shares: bool,
        ranks_per_node: int | None,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("bottomless: shard a model: call torch.distributed.init_process_group() first")
        runtime = bottomless._current
        if runtime is not None and runtime._update_in_backward is not None:
            raise ValueError("bottomless: shard a model: update_in_backward would step before other ranks' gradients are in; leave it off")
        if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
            raise ValueError(f"bottomless: shard a model: {type(optimizer).__name__} cannot be sharded; AdamW and others can")
        self.model = model
        self.optimizer = optimizer
        self.stage = stage
        self._parameters: list[torch.nn.Parameter] = []
        self._names: list[str] = []
        for name, parameter in model.named_parameters():
            self._names.append(name)
            self._parameters.append(parameter)
        self._of_model = len(self._names)
        of_optimizer = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        known = {id(parameter) for parameter in self._parameters}
        for number, parameter in enumerate(of_optimizer):
            if id(parameter) not in known:
                self._names.append(f"optimizer.{number}")
                self._parameters.append(parameter)
        self._buffers = list(model.buffers()) if broadcast_buffers else []
        self.whole_tensors = not _is_elementwise(optimizer)
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        # A group of its own, so that nothing of the script's gets in between; its waits have our own deadline.
        self._group = dist.new_group(ranks, backend="gloo", timeout=datetime.timedelta(days=365))
        self.rank, self.ranks = dist.get_rank(self._group), len(ranks)
        if self.whole_tensors and self.rank == 0:
            print(
                f"bottomless: {type(optimizer).__name__} may look at a parameter as a whole: each rank updates whole parameters",
                file=sys.stderr,
            )
        self._core = torch.classes.bottomless.Shards(
            self._group.group_name, self._names, self._parameters, stage,
            self.whole_tensors, quantised_weights, quantised_gradients, float(deadline),
            _ranks_per_node(ranks_per_node, node_shares, whole_world=group is None), node_shares,
        )  # fmt: skip
        self._slices = [
            Slice(self._core.slice(i), parameter.requires_grad) for i, parameter in enumerate(self._parameters)
        ]
        self._gradients = Gradients(self)
        self._follows = False
        self._closed = False
        self._asked = 0
        self._saves = 0
        self._saving: _shard_checkpoint.Saving | None = None
        self._steps_before = 0  # of the run that was loaded
        self._rebuild_groups()
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        if hasattr(optimizer, "needs_all_gradients"):
            optimizer._sum_over_ranks = self._sum_over_ranks
        for buffer in self._buffers:
            self._core.copy_from_first(buffer)
        atexit.register(self._at_exit)

    # What people call.

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients accumulate on each rank, without traffic, until a backward pass outside of this."""
        before, self._gradients.syncs = self._gradients.syncs, False
        try:
            yield
        finally:
            self._gradients.syncs = before

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """torch.nn.utils.clip_grad_norm_ over all ranks; that one works as well."""
        return torch.nn.utils.clip_grad_norm_(self._parameters, max_norm, norm_type)

    def stats(self) -> dict[str, int]:
        """Traffic of this rank since it was made, as it crossed the network."""
        return dict(self._core.stats())

    def save(self, directory: str | os.PathLike[str], step: int | None = None, extra: Any = None) -> None:
        """Write a checkpoint that any number of ranks can load, and plain PyTorch. All ranks must call it.

        The directory holds the last one or this one, complete, whatever happens. ``step`` is the number of steps taken
        unless given; ``extra`` anything that JSON can hold. Gradients are not saved.
        """
        self.save_in_background(directory, step, extra).wait()

    def save_in_background(
        self, directory: str | os.PathLike[str], step: int | None = None, extra: Any = None
    ) -> _shard_checkpoint.Saving:
        """The same, while training goes on: the next optimizer step waits until all has been read, and nothing is copied.

        ``wait()`` of what it returns says when it is complete, and raises if it failed; so does the next save.
        """
        self._end_saving()
        self._saving = _shard_checkpoint.save_in_background(self, directory, step, extra)
        return self._saving

    def load(self, directory: str | os.PathLike[str]) -> dict[str, Any]:
        """Take over parameters, buffers, states and options of a checkpoint; returns its ``step`` and ``extra``.

        All ranks must call it. Each reads its own shares. What does not fit is an error, before anything has changed.
        """
        self._end_saving()
        return _shard_checkpoint.load(self, directory)

    def _end_saving(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None and not saving._waited:
            saving.wait()

    def close(self) -> None:
        """Waits until all ranks are done. What a rank has more steps than others, these take part in.

        From then on the model is this rank's own, and whole.
        """
        if not self._closed:
            self._leave(keep=True)

    def _leave(self, keep: bool) -> None:
        self._end_saving()
        self._gradients.forget()
        while (others := self._core.await_others()) != "are done":
            if others == "reduce":
                self._gradients.take(self._core.reduce())
            elif others == "sum":
                self._gradients.sum_with_others()
            else:
                self._follows = True
                self.optimizer.step()
                self._gradients.forget()
        self._core.part(keep)
        self._end()
        self._core.close()

    # The optimizer's side.

    def _rebuild_groups(self) -> None:
        slices = {id(parameter): own for parameter, own in zip(self._parameters, self._slices)}
        index = {id(parameter): i for i, parameter in enumerate(self._parameters)}
        states = dict(self.optimizer.state)
        self.optimizer.state.clear()
        self._groups = [  # parameters by index, and the names that the optimizer has for them
            ([index[id(parameter)] for parameter in group["params"]], group.get("param_names"))
            for group in self.optimizer.param_groups
        ]
        for group in self.optimizer.param_groups:
            owned = []
            for parameter in group["params"]:
                own = slices[id(parameter)]
                if own.numel() > 0:
                    owned.append(own)
                    if parameter in states:
                        self.optimizer.state[own] = self._sliced(states[parameter], parameter, index[id(parameter)])
            if "param_names" in group:
                names = {id(slices[id(p)]): name for p, name in zip(group["params"], group["param_names"])}
                group["param_names"] = [names[id(own)] for own in owned]
            group["params"][:] = owned

    def _sliced(self, state: dict[str, Any], parameter: torch.Tensor, index: int) -> dict[str, Any]:
        begin, end = self._bounds(index)[self.rank]
        own = self._slices[index]
        return {
            name: _in_memory_order(value, parameter)[begin:end].clone().view_as(own)
            if torch.is_tensor(value) and value.shape == parameter.shape and value.dim() > 0
            else value
            for name, value in state.items()
        }

    def _bounds(self, index: int) -> list[tuple[int, int]]:
        flat = self._core.bounds(index)
        return list(zip(flat[::2], flat[1::2]))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # torch hands the optimizer over as well
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._gradients.give_away()
        if self._saving is not None:
            self._saving._core.wait_until_read()
        self._gradients.begin_step()
        if (guide := self._core.guide()) >= 0:
            self._agree(guide)
        if closure is not None:
            return (args[0], lambda: loss), {}
        return None

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._gradients.end_step()
        self._core.end_step()
        for buffer in self._buffers:
            self._core.copy_from_first(buffer)

    def _agree(self, guide: int) -> None:
        """A rank whose script is done has not changed options nor scaled gradients as the others have: it does so now."""
        groups = self.optimizer.param_groups
        own = torch.tensor([*numbers_of(groups), *self._gradients.scales()], dtype=torch.float64)
        agreed = iter(self._core.sum_over_ranks(own if self.rank == guide else torch.zeros_like(own)).tolist())
        if self._follows:
            set_numbers(groups, agreed)
            self._gradients.scale(list(agreed))

    def _sum_over_ranks(self, value: float) -> float:
        return self._core.sum_over_ranks(torch.tensor([value], dtype=torch.float64)).item()

    def _gathered(self, index: int, own: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The whole of which every rank has `own`. All ranks must ask, in the same order."""
        self._asked += 1
        number = self._asked
        if own.numel() > 0:
            self._core.publish(number, own)
        whole = torch.empty_like(like.detach(), dtype=own.dtype)
        flat = whole.as_strided((whole.numel(),), (1,))
        for rank, (begin, end) in enumerate(self._bounds(index)):
            if end > begin:
                part = torch.empty(end - begin, dtype=own.dtype)
                self._core.read(rank, number, 0, part)
                flat[begin:end] = part
        self._core.sum_over_ranks(torch.zeros(1))  # everybody has had it
        if own.numel() > 0:
            self._core.retract(number)
        return whole

    # The end.

    def _end(self) -> None:
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if self._closed:
            return
        if getattr(sys, "last_value", None) is not None:  # the script failed: others shall not wait for it
            self._end()
            self._core.abandon()
            return
        try:
            self._leave(keep=False)
        except RuntimeError as error:
            self._end()
            self._core.abandon()
            print(f"bottomless: {error}", file=sys.stderr)


def _in_memory_order(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Shares are cut from memory as the parameter lies there, which may be channels_last."""
    placed = torch.empty_like(like, dtype=value.dtype, requires_grad=False).copy_(value)
    return placed.as_strided((placed.numel(),), (1,))


def _ranks_per_node(given: int | None, needed: bool, whole_world: bool) -> int:
    """0: all are one node."""
    if given is not None:
        if given < 1:
            raise ValueError(f"bottomless: shard a model: ranks_per_node={given}: must be 1 or more")
        return given
    if whole_world and "LOCAL_WORLD_SIZE" in os.environ:  # torchrun numbers the ranks node by node
        return int(os.environ["LOCAL_WORLD_SIZE"])
    if needed:
        raise ValueError(
            "bottomless: shard a model: node_shares needs to know which ranks are a node; start with torchrun "
            "(LOCAL_WORLD_SIZE), without group=, or give ranks_per_node="
        )
    return 0


def _is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    kind = type(optimizer)
    return any(
        kind.__name__ in names and kind.__module__.startswith(package) for package, names in _ELEMENTWISE.items()
    )


def shard(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    stage: int = 3,
    *,
    group: dist.ProcessGroup | None = None,
    deadline: float = 600.0,
    broadcast_buffers: bool = True,
    quantised_weights: bool = False,
    quantised_gradients: bool = False,
    node_shares: bool = False,
    ranks_per_node: int | None = None,
) -> Sharded:
    """Spread a model's training over the ranks of torch.distributed. Call it on all of them, under a limit.

    Of every parameter each rank keeps a share, and the optimizer updates that. ``stage`` 1 shards the optimizer's states, 2
    gradients too, 3 parameters too: whole parameters are gathered when an operator needs them, and leave when their room is
    needed. All ranks begin with rank 0's parameters. The script goes on as before: gradients are the means over all ranks.

    ``node_shares`` keeps a second set of shares within each node of ``ranks_per_node`` consecutive ranks (torchrun's
    ``LOCAL_WORLD_SIZE`` unless given): at stage 3, only the first gather of a step crosses nodes.
    """
    return Sharded(
        model, optimizer, stage, group, deadline, broadcast_buffers, quantised_weights, quantised_gradients,
        node_shares, ranks_per_node,
    )  # fmt: skip
