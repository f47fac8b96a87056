"""The precision that a model computes in: bfloat16 or float16 where this machine is clearly faster, else float32.

    scaler = bottomless.precision.grad_scaler()
    for x, y in batches:
        with bottomless.precision.autocast():
            loss = loss_of(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer), scaler.update(), optimizer.zero_grad()

Parameters stay float32. Both are torch's own: autocast is off for float32, the scaler for all but float16. The choice
is made by a measurement, once a process, so machines may differ in it, and bits with them; a run that is continued
elsewhere, and ranks that share a model, fix it by ``BOTTOMLESS_COMPUTE_DTYPE=bfloat16`` (or ``float16``, ``float32``).
``bottomless doctor`` says what this machine chooses.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Callable

import torch

__all__ = ["autocast", "choose", "compute_dtype", "grad_scaler", "measure"]

VARIABLE = "BOTTOMLESS_COMPUTE_DTYPE"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NARROW = (torch.bfloat16, torch.float16)  # in the order of preference: bfloat16 needs no scaling
_CLEARLY = 1.2  # less would not pay for the casts and the lost digits
_HOPELESS = 2.0
_PASSES = 5
_Work = dict[torch.dtype, Callable[[], None]]
_chosen: dict[torch.device, torch.dtype] = {}


def measure(device: str | torch.device = "cpu") -> dict[torch.dtype, float]:
    """Seconds of a linear layer's three products by data type, medians; what the device cannot do is absent.

    Takes less than half a second on an idle machine, and draws no random numbers.
    """
    device = torch.device(device)
    rows, width = (256, 512) if device.type == "cpu" else (1024, 2048)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        dtypes = [torch.float32, *(dtype for dtype in _NARROW if _can(device, dtype))]
        # Emulated, a type can take a hundred times as long: a look at a quarter of the rows tells.
        first = _race({dtype: _products(rows // 4, width, dtype, device) for dtype in dtypes}, 2, device)
        times = _race({dtype: _products(rows, width, dtype, device) for dtype in _hopeful(first)}, _PASSES, device)
    estimates = {dtype: 4 * statistics.median(first[dtype]) for dtype in dtypes}
    return estimates | {dtype: statistics.median(times[dtype]) for dtype in times}


def choose(seconds: dict[torch.dtype, float]) -> torch.dtype:
    """bfloat16 if it is at least 1.2 times as fast as float32, else float16 if that is, else float32."""
    for dtype in _NARROW:
        if dtype in seconds and seconds[torch.float32] >= _CLEARLY * seconds[dtype]:
            return dtype
    return torch.float32


def compute_dtype(device: str | torch.device = "cpu") -> torch.dtype:
    """What BOTTOMLESS_COMPUTE_DTYPE says, else the choice by measurement, which is made once a process and device."""
    fixed = _fixed()
    if fixed is not None:
        return fixed
    device = torch.device(device)
    if device not in _chosen:
        _chosen.setdefault(device, choose(measure(device)))  # threads that measured at once agree on the first
    return _chosen[device]


def autocast(device: str | torch.device = "cpu") -> torch.autocast:
    """``torch.autocast`` in the chosen precision, switched off for float32."""
    dtype = compute_dtype(device)
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=dtype is not torch.float32)


def grad_scaler(device: str | torch.device = "cpu") -> torch.amp.GradScaler:
    """``torch.amp.GradScaler``, switched on for float16 only: the others have float32's range, and need no scaling."""
    return torch.amp.GradScaler(torch.device(device).type, enabled=compute_dtype(device) is torch.float16)


def _fixed() -> torch.dtype | None:
    name = os.environ.get(VARIABLE, "")
    if name and name not in _DTYPES:
        raise ValueError(f"{VARIABLE} {name!r}: must be float32, bfloat16 or float16")
    return _DTYPES[name] if name else None


def _can(device: torch.device, dtype: torch.dtype) -> bool:
    if dtype is torch.float32:
        return True
    if device.type == "cuda" and dtype is torch.bfloat16:
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                return False
    try:
        _products(1, 8, dtype, device)()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):
        return False
    return True


def _products(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Callable[[], None]:
    """The output of a linear layer, and the gradients of its input and its weight."""

    def made(count: int) -> torch.Tensor:  # -3/8 to 3/8, which every type holds exactly
        values = torch.arange(count * width, dtype=torch.int32, device=device).remainder_(7).sub_(3)
        return values.to(dtype).div_(8).view(count, width)

    x, weight, grad = made(rows), made(width), made(rows)

    def work() -> None:
        x @ weight.t()
        grad @ weight
        grad.t() @ x

    return work


def _race(work: _Work, passes: int, device: torch.device) -> dict[torch.dtype, list[float]]:
    """Seconds of each pass, in turns, after a warm-up; whoever has fallen behind for good takes no further part."""
    times: dict[torch.dtype, list[float]] = {dtype: [] for dtype in work}
    for each in work.values():
        _seconds(each, device)
    for number in range(passes):
        for dtype in work if number < 2 else _hopeful(times):
            times[dtype].append(_seconds(work[dtype], device))
    return times


def _hopeful(times: dict[torch.dtype, list[float]]) -> list[torch.dtype]:
    return [dtype for dtype in times if min(times[dtype]) < _HOPELESS * min(times[torch.float32])]


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    finish = (lambda: None) if device.type == "cpu" else (lambda: torch.accelerator.synchronize(device))
    finish()
    begin = time.perf_counter()
    work()
    finish()
    return time.perf_counter() - begin


def _main() -> None:
    try:
        fixed = _fixed()
    except ValueError as error:
        sys.exit(f"bottomless: {error}")
    seconds = measure()
    names = {dtype: name for name, dtype in _DTYPES.items()}
    speed = {names[dtype]: round(seconds[torch.float32] / seconds[dtype], 3) for dtype in _NARROW if dtype in seconds}
    chosen = {"chosen": names[fixed or choose(seconds)], "set_by": "measurement" if fixed is None else VARIABLE}
    print(json.dumps({**chosen, "speed": speed}))


if __name__ == "__main__":
    _main()
