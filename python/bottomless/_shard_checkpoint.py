"""Checkpoints over ranks: what the tensors and numbers of a training are called. The bytes move in C++.

Tensors are whole, whoever had which share of them: ``model.NAME`` for parameters and buffers, ``optimizer.STATE.NAME`` for
the states of a parameter. The rest (options of parameter groups, counters of steps) is in the manifest.
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple

import torch

from . import _core  # torch.classes.bottomless is in it

if TYPE_CHECKING:
    from ._shard import Sharded

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32,
    "U32": torch.uint32, "F32": torch.float32, "I64": torch.int64, "U64": torch.uint64, "F64": torch.float64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_LISTED = 1024  # elements of a tensor that goes into the manifest


class Saving:
    """A save under way. Training may go on; the next optimizer step waits until everything has been read."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._waited = False

    def wait(self) -> None:
        """Until the checkpoint is complete, on disk, on all ranks; raises if it is not."""
        self._waited = True
        self._core.wait()

    def done(self) -> bool:
        return self._core.ended()


class _Logical(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bounds: list[int]  # begin and end of every rank's share
    own: torch.Tensor | None


def save_in_background(sharded: Sharded, directory: Any, step: int | None, extra: Any) -> Saving:
    core = sharded._core
    core.adopt_writes()
    problem, description, tensors = "", {}, {}
    try:
        description, tensors = _describe_states(sharded)
        manifest = _manifest(sharded, extra)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = str(error)
    everybody = _exchange(sharded, {"problem": problem, "states": description})
    _raise_if_any(everybody, "save a checkpoint")
    step = sharded._steps_before + core.stats()["steps"] if step is None else int(step)
    sharded._saves += 1
    saving = torch.classes.bottomless.ShardSave(core, os.fspath(directory), step, sharded._saves)
    states: dict[str, dict[str, Any]] = {}
    logical = [*_parameters(sharded), *_buffers(sharded)]
    logical += _states(sharded, [rank["states"] for rank in everybody], tensors, states)
    for tensor in logical:
        saving.add(tensor.name, _dtype_name(tensor.dtype, tensor.name), list(tensor.shape), list(tensor.strides),
                   tensor.bounds, tensor.own)  # fmt: skip
    manifest["states"] = states
    saving.start(json.dumps(manifest, allow_nan=False))
    return Saving(saving)


def load(sharded: Sharded, directory: Any) -> dict[str, Any]:
    problem, files = "", []
    try:
        checkpoint = torch.classes.bottomless.Checkpoint(os.fspath(directory))
        manifest = _manifest_of(checkpoint)
        files = checkpoint.files()
        _check(sharded, checkpoint, manifest)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = str(error)
    everybody = _exchange(sharded, {"problem": problem, "files": files})  # and now nobody needs the old content
    _raise_if_any(everybody, f"load {os.fspath(directory)}")
    if any(rank["files"] != files for rank in everybody):
        raise RuntimeError(f"bottomless: load {os.fspath(directory)}: ranks see different checkpoints: load again")
    sharded._core.begin_renewal()
    try:
        _read(sharded, checkpoint, manifest)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = str(error)
    sharded._core.end_renewal()
    _raise_if_any(_exchange(sharded, {"problem": problem}), f"load {os.fspath(directory)} (parts of it are loaded)")
    sharded._steps_before = checkpoint.step() - sharded._core.stats()["steps"]
    return {"step": checkpoint.step(), "extra": _decoded(manifest["extra"])}


def load_checkpoint(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """A checkpoint of :meth:`Sharded.save`, for plain PyTorch: without ranks, without a limit.

    ``model`` and ``optimizer`` are what ``load_state_dict`` takes; ``step`` and ``extra`` what was given to ``save``.
    ``others`` are parameters that only the optimizer knew. Every tensor is compared with its checksum.
    """
    checkpoint = torch.classes.bottomless.Checkpoint(os.fspath(directory))
    manifest = _manifest_of(checkpoint)

    def whole(name: str) -> torch.Tensor:
        tensor = torch.empty(checkpoint.shape(name), dtype=_DTYPES[checkpoint.dtype(name)])
        checkpoint.read_whole(name, tensor)
        return tensor

    model = {name: whole(f"model.{name}") for name in manifest["model"]}
    ordered = {name: model[manifest["aliases"].get(name, name)] for name in manifest["names"]}
    numbers: dict[str, int] = {}
    groups = []
    for group in manifest["groups"]:
        for name in group["parameters"]:
            numbers.setdefault(name, len(numbers))
        groups.append({**_decoded(group["options"]), "params": [numbers[name] for name in group["parameters"]]})
        if group["names"] is not None:
            groups[-1]["param_names"] = group["names"]
    state = {}
    for name, its in manifest["states"].items():
        state[numbers[name]] = {key: _decoded(value) for key, value in its["values"].items()}
        state[numbers[name]] |= {key: whole(f"optimizer.{key}.{name}") for key in its["tensors"]}
    return {
        "model": ordered,
        "optimizer": {"state": dict(sorted(state.items())), "param_groups": groups},
        "others": {name: whole(f"beside.{name}") for name in manifest["others"]},
        "step": checkpoint.step(),
        "extra": _decoded(manifest["extra"]),
    }


# What there is, under which name.


def _parameter_name(sharded: Sharded, index: int) -> str:
    return f"{'model' if index < sharded._of_model else 'beside'}.{sharded._names[index]}"


def _parameters(sharded: Sharded) -> Iterator[_Logical]:
    for i, parameter in enumerate(sharded._parameters):
        yield _Logical(_parameter_name(sharded, i), parameter.dtype, tuple(parameter.shape), parameter.stride(),
                       sharded._core.bounds(i), sharded._core.slice(i))  # fmt: skip


def _persistent_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }


def _aliases(model: torch.nn.Module) -> dict[str, str]:
    """Names of tensors that have another one, too: tied weights."""
    first: dict[int, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *_persistent_buffers(model).items()]
    pairs = [(name, first.setdefault(id(tensor), name)) for name, tensor in named]
    return {name: other for name, other in pairs if name != other}


def _own_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    aliases = _aliases(model)
    return {name: buffer for name, buffer in _persistent_buffers(model).items() if name not in aliases}


def _buffers(sharded: Sharded) -> Iterator[_Logical]:
    """Rank 0's, as they are now: forward passes write to them."""
    for name, buffer in _own_buffers(sharded.model).items():
        copy = buffer.detach().contiguous().clone() if sharded.rank == 0 else None
        bounds = _all_for(0, buffer.numel(), sharded.ranks)
        yield _Logical(f"model.{name}", buffer.dtype, tuple(buffer.shape), _row_major(buffer.shape), bounds, copy)


def _manifest(sharded: Sharded, extra: Any) -> dict[str, Any]:
    names = [name for name, _ in sharded.model.named_parameters(remove_duplicate=False)]
    buffers = _own_buffers(sharded.model)
    groups = []
    for number, group in enumerate(sharded.optimizer.param_groups):
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        indices, given = sharded._groups[number]
        names_of_group = [sharded._names[i] for i in indices]
        options = _encoded(options, f"options of parameter group {number}")
        groups.append({"parameters": names_of_group, "names": given, "options": options})
    return {
        "kind": "bottomless training", "version": 1,
        "model": [*sharded._names[: sharded._of_model], *buffers],
        "names": [*names, *_persistent_buffers(sharded.model)],
        "aliases": _aliases(sharded.model),
        "others": sharded._names[sharded._of_model :],
        "groups": groups,
        "extra": _encoded(extra, "extra"),
    }  # fmt: skip


def _manifest_of(checkpoint: Any) -> dict[str, Any]:
    manifest = json.loads(checkpoint.extra())
    if manifest.get("kind") != "bottomless training" or manifest.get("version") != 1:
        raise RuntimeError("bottomless: it is a checkpoint, but not one of a training by this version of bottomless")
    return manifest


# States of the optimizer.


def _describe_states(sharded: Sharded) -> tuple[dict[str, Any], dict[tuple[int, str], torch.Tensor]]:
    """What this rank has: a description for the others, and the tensors."""
    described: dict[str, Any] = {}
    tensors: dict[tuple[int, str], torch.Tensor] = {}
    for i, own in enumerate(sharded._slices):
        if own.numel() == 0 or not sharded.optimizer.state.get(own):
            continue
        its = described[str(i)] = {"parts": {}, "wholes": {}, "values": {}}
        for key, value in _plain_states(sharded.optimizer, sharded.optimizer.state[own]):
            what = f"optimizer.{key}.{sharded._names[i]}"
            if not torch.is_tensor(value) or value.dim() == 0:
                its["values"][key] = _encoded(value, what)
            elif value.shape == own.shape:
                if value.stride() != own.stride() or not _fills_storage(value):
                    value = torch.empty_like(own.detach(), dtype=value.dtype).copy_(value)
                its["parts"][key] = _dtype_name(value.dtype, what)
                tensors[i, key] = value
            elif own.numel() == sharded._parameters[i].numel():
                value = value.detach().contiguous()
                its["wholes"][key] = [_dtype_name(value.dtype, what), list(value.shape)]
                tensors[i, key] = value if _fills_storage(value) else value.clone()
            else:
                shapes = f"shape {tuple(value.shape)}, for a share of shape {tuple(own.shape)}"
                raise ValueError(f"bottomless: save '{what}': {shapes}: it cannot be put together again")
    return described, tensors


def _plain_states(optimizer: Any, state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """States of 8 bits as float32, as state_dict() has them."""
    for key, value in state.items():
        if key + "_scales" in state and key in getattr(optimizer, "_states", ()):
            values = torch.empty_like(value, dtype=torch.float32)
            yield key, torch.ops.bottomless.decode_(values, value, state[key + "_scales"])
        elif not (key.endswith("_scales") and key.removesuffix("_scales") in getattr(optimizer, "_states", ())):
            yield key, value


def _fills_storage(tensor: torch.Tensor) -> bool:
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == tensor.nbytes


def _states(
    sharded: Sharded,
    everybody: list[dict[str, Any]],
    tensors: dict[tuple[int, str], torch.Tensor],
    states: dict[str, dict[str, Any]],
) -> Iterator[_Logical]:
    """The states of all ranks, in one order; fills `states` with what the manifest says of them."""
    for i, parameter in enumerate(sharded._parameters):
        bounds = sharded._bounds(i)
        owners = [rank for rank, (begin, end) in enumerate(bounds) if end > begin]
        found = [everybody[rank].get(str(i)) for rank in owners]
        if not any(found):
            continue
        name, its = sharded._names[i], found[0]
        if any(other is None or other["parts"] != its["parts"] for other in found):
            raise RuntimeError(f"bottomless: save the states of '{name}': ranks {owners} have different ones")
        states[name] = {"values": its["values"], "tensors": [*its["parts"], *its["wholes"]]}
        for key, dtype in its["parts"].items():
            yield _Logical(f"optimizer.{key}.{name}", _DTYPES[dtype], tuple(parameter.shape), parameter.stride(),
                           sharded._core.bounds(i), tensors.get((i, key)))  # fmt: skip
        for key, (dtype, shape) in its["wholes"].items():
            yield _Logical(f"optimizer.{key}.{name}", _DTYPES[dtype], tuple(shape), _row_major(shape),
                           _all_for(owners[0], math.prod(shape), sharded.ranks), tensors.get((i, key)))  # fmt: skip


# Loading.


def _check(sharded: Sharded, checkpoint: Any, manifest: dict[str, Any]) -> None:
    """All that can be wrong, before anything changes."""
    there = set(checkpoint.tensors())

    def compare(name: str, shape: torch.Size, dtype: torch.dtype | None) -> None:
        if name not in there:
            raise ValueError(f"'{name}' is missing in the checkpoint")
        if tuple(checkpoint.shape(name)) != tuple(shape):
            raise ValueError(f"'{name}' has shape {tuple(checkpoint.shape(name))} in the checkpoint, here {tuple(shape)}")
        if dtype is not None and checkpoint.dtype(name) != _NAMES.get(dtype):
            raise ValueError(f"'{name}' is of {_DTYPES[checkpoint.dtype(name)]} in the checkpoint, here of {dtype}")

    wanted = {_parameter_name(sharded, i): parameter for i, parameter in enumerate(sharded._parameters)}
    wanted |= {f"model.{name}": buffer for name, buffer in _own_buffers(sharded.model).items()}
    for name, tensor in wanted.items():
        compare(name, tensor.shape, tensor.dtype)
    unknown = sorted(name for name in there if not name.startswith("optimizer.") and name not in wanted)
    if unknown:
        raise ValueError(f"'{unknown[0]}' of the checkpoint is not in this model")
    ours = [[sharded._names[i] for i in indices] for indices, _ in sharded._groups]
    theirs = [group["parameters"] for group in manifest["groups"]]
    if ours != theirs:
        number = next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        raise ValueError(f"parameter group {number} of the optimizer has other parameters in the checkpoint")
    for i, name in enumerate(sharded._names):
        parameter, its = sharded._parameters[i], manifest["states"].get(name, {"tensors": []})
        is_split = any(0 < end - begin < parameter.numel() for begin, end in sharded._bounds(i))
        for key in its["tensors"]:
            whole = f"optimizer.{key}.{name}"
            if whole not in there or is_split:
                compare(whole, parameter.shape, None)


@torch.no_grad()
def _read(sharded: Sharded, checkpoint: Any, manifest: dict[str, Any]) -> None:
    for i, parameter in enumerate(sharded._parameters):
        begin, end = sharded._bounds(i)[sharded.rank]
        if end > begin:
            name = _parameter_name(sharded, i)
            checkpoint.read(name, parameter.stride(), begin, end, sharded._core.slice(i))
            torch.autograd.graph.increment_version(sharded._slices[i])
    for name, buffer in _own_buffers(sharded.model).items():
        content = torch.empty(buffer.shape, dtype=buffer.dtype)
        checkpoint.read_whole(f"model.{name}", content)
        buffer.copy_(content)
    optimizer = sharded.optimizer
    optimizer.state.clear()  # room for the new ones
    numbers: dict[int, int] = {}
    groups = []
    slices = {id(own): i for i, own in enumerate(sharded._slices)}
    for group, saved in zip(optimizer.param_groups, manifest["groups"]):
        own = [slices[id(parameter)] for parameter in group["params"]]
        for i in own:
            numbers.setdefault(i, len(numbers))
        groups.append({**_decoded(saved["options"]), "params": [numbers[i] for i in own]})
    states = {}
    for i, number in numbers.items():
        its = manifest["states"].get(sharded._names[i])
        if its is None:
            continue
        states[number] = {key: _decoded(value) for key, value in its["values"].items()}
        for key in its["tensors"]:
            states[number][key] = _state(sharded, checkpoint, i, f"optimizer.{key}.{sharded._names[i]}")
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _state(sharded: Sharded, checkpoint: Any, index: int, name: str) -> torch.Tensor:
    own, parameter = sharded._slices[index].detach(), sharded._parameters[index]
    dtype, shape = _DTYPES[checkpoint.dtype(name)], checkpoint.shape(name)
    if tuple(shape) == tuple(parameter.shape):
        state = torch.empty_like(own, dtype=dtype)
        begin, end = sharded._bounds(index)[sharded.rank]
        checkpoint.read(name, parameter.stride(), begin, end, state)
    else:
        state = torch.empty(shape, dtype=dtype)
        checkpoint.read_whole(name, state)
    return state


# Between ranks.


def _exchange(sharded: Sharded, what: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank says. All must ask, in the same order."""
    return [json.loads(said) for said in sharded._core.exchange_texts(json.dumps(what))]


def _raise_if_any(everybody: list[dict[str, Any]], attempted: str) -> None:
    for rank, said in enumerate(everybody):
        if said["problem"]:
            problem = said["problem"].removeprefix("bottomless: ")
            raise RuntimeError(f"bottomless: {attempted}: rank {rank}: {problem}")


# Values in JSON.


def _encoded(value: Any, what: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, (list, tuple)):
        listed = [_encoded(item, what) for item in value]
        return listed if isinstance(value, list) else {"tuple": listed}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encoded(item, f"{what}: {key}") for key, item in value.items()}}
    if torch.is_tensor(value) and value.numel() <= _MOST_LISTED:
        return {"tensor": _encoded(value.tolist(), what), "dtype": _dtype_name(value.dtype, what)}
    if isinstance(value, torch.dtype):
        return {"dtype": _dtype_name(value, what)}
    raise TypeError(f"bottomless: save '{what}': {type(value).__name__} cannot be written as JSON")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {key: _decoded(item) for key, item in value["dict"].items()}
    if "tuple" in value:
        return tuple(_decoded(value["tuple"]))
    if "tensor" in value:
        return torch.tensor(_decoded(value["tensor"]), dtype=_DTYPES[value["dtype"]])
    return float(value["float"]) if "float" in value else _DTYPES[value["dtype"]]


def _dtype_name(dtype: torch.dtype, what: str) -> str:
    if dtype not in _NAMES:
        raise TypeError(f"bottomless: save '{what}': safetensors has no {dtype}")
    return _NAMES[dtype]


def _row_major(shape: Any) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _all_for(owner: int, elements: int, ranks: int) -> list[int]:
    return [bound for rank in range(ranks) for bound in ((0, elements) if rank == owner else (0, 0))]
