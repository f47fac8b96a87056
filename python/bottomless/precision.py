"""The precision that a model computes in: bfloat16 or float16 where this machine is clearly faster, else float32.

    scaler = bottomless.precision.grad_scaler()
    for x, y in batches:
        with bottomless.precision.autocast():
            loss = loss_of(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer), scaler.update(), optimizer.zero_grad()

Parameters stay float32. Both are torch's own: autocast is off for float32, the scaler for all but float16. The choice
is made by a measurement, once a machine, so machines may differ in it, and bits with them: ``keep_in(directory)``
writes what a run computes in to its directory, and a run that is resumed, here or elsewhere, computes in the same. Ranks
that share a model fix it by ``BOTTOMLESS_COMPUTE_DTYPE=bfloat16`` (or ``float16``, ``float32``). ``bottomless doctor``
says what this machine chooses.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import time
from typing import Callable, Iterator, NamedTuple

import torch

__all__ = ["autocast", "choose", "compute_dtype", "grad_scaler", "keep_in", "measure"]

VARIABLE = "BOTTOMLESS_COMPUTE_DTYPE"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NARROW = (torch.bfloat16, torch.float16)  # in the order of preference: bfloat16 needs no scaling
_CLEARLY = 1.2  # less would not pay for the casts and the lost digits
_HOPELESS = 3.0
_QUIET_SECONDS, _MOST_SECONDS, _MOST_SECONDS_AGAIN = 0.1, 1.0, 0.3  # of each type
_FILE = "compute_dtype"
_Work = dict[torch.dtype, Callable[[], None]]
_Times = dict[torch.dtype, list[tuple[float, float]]]  # of each pass: by the wall clock, and of the processor
_THREADS = 1  # several that wait for each other on a busy machine spin, which is processor time, too


class _Speed(NamedTuple):
    """Passes a second: what is credible, and whether nothing disturbed them (src/plan/speed_measurement.h)."""

    low: float
    high: float
    quiet: bool


_Speeds = dict[torch.dtype, _Speed]
_chosen: dict[torch.device, torch.dtype] = {}


def measure(device: str | torch.device = "cpu") -> dict[torch.dtype, float]:
    """Seconds of a linear layer's three products by data type; what the device cannot do is absent.

    Takes less than half a second on an idle machine, a few where others use the processor: then its time decides
    instead of the wall clock. Draws no random numbers.
    """
    return _seconds_of(_measure(torch.device(device), _MOST_SECONDS))


def choose(seconds: dict[torch.dtype, float]) -> torch.dtype:
    """bfloat16 if it is at least 1.2 times as fast as float32, else float16 if that is, else float32."""
    for dtype in _NARROW:
        if dtype in seconds and seconds[torch.float32] >= _CLEARLY * seconds[dtype]:
            return dtype
    return torch.float32


def compute_dtype(device: str | torch.device = "cpu") -> torch.dtype:
    """What BOTTOMLESS_COMPUTE_DTYPE says, else the choice by measurement, which is made once a machine and device."""
    fixed = _fixed()
    if fixed is not None:
        return fixed
    device = torch.device(device)
    if device not in _chosen:
        chosen = choose(_seconds_of(_known_or_measured(device)))
        _chosen.setdefault(device, chosen)  # threads that measured at once agree on the first
    return _chosen[device]


def keep_in(directory: str | os.PathLike[str], device: str | torch.device = "cpu") -> torch.dtype:
    """What the run in this directory computes in, from now on in this process, too: as its file ``compute_dtype`` says.

    Where there is none, it is written. A run that is resumed so never changes its type. If BOTTOMLESS_COMPUTE_DTYPE
    says something else, that is an error.
    """
    file = pathlib.Path(directory) / _FILE
    fixed, device = _fixed(), torch.device(device)
    try:
        name = file.read_text().strip()
    except FileNotFoundError:
        chosen = compute_dtype(device)
        draft = file.with_name(f"{_FILE}.{os.getpid()}")
        draft.write_text(_name(chosen) + "\n")
        draft.replace(file)
        return chosen
    if name not in _DTYPES:
        raise ValueError(f"{file}: must be float32, bfloat16 or float16, and is {name!r}")
    if fixed not in (None, _DTYPES[name]):
        raise ValueError(f"{VARIABLE} is {_name(fixed)}, and the run in {file.parent} computes in {name}: unset it")
    _chosen[device] = _DTYPES[name]
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _seconds_of(speeds: _Speeds) -> dict[torch.dtype, float]:
    return {dtype: 1 / speed.high for dtype, speed in speeds.items()}


def _known_or_measured(device: torch.device) -> _Speeds:
    """Of the CPU as it was measured in a quiet moment, whenever that was; until then the first result stands."""
    if device.type != "cpu":
        return _measure(device, _MOST_SECONDS)
    what = f"torch {torch.__version__}, choice of precision"
    known = _unpacked(torch.ops.bottomless.measured_before(what))
    if known and _is_quiet(known):
        return known
    found = _measure(device, _MOST_SECONDS_AGAIN if known else _MOST_SECONDS)
    if known and not _is_quiet(found):
        return known
    torch.ops.bottomless.keep_measured(what, _packed(found))
    return found


def _is_quiet(speeds: _Speeds) -> bool:
    return all(speed.quiet for speed in speeds.values())


def _packed(speeds: _Speeds) -> list[float]:
    absent = _Speed(0, 0, True)
    return [float(number) for dtype in _DTYPES.values() for number in speeds.get(dtype, absent)]


def _unpacked(numbers: list[float]) -> _Speeds:
    """Empty where they make no sense."""
    if len(numbers) != 3 * len(_DTYPES):
        return {}
    triples = zip(_DTYPES.values(), zip(*[iter(numbers)] * 3))
    speeds = {dtype: _Speed(low, high, quiet == 1) for dtype, (low, high, quiet) in triples if high > 0}
    return speeds if torch.float32 in speeds and all(0 < it.low <= it.high for it in speeds.values()) else {}


def _measure(device: torch.device, most_seconds: float) -> _Speeds:
    rows, width = (256, 512) if device.type == "cpu" else (1024, 2048)
    with torch.no_grad(), torch.autocast(device.type, enabled=False), _one_thread():
        dtypes = [torch.float32, *(dtype for dtype in _NARROW if _can(device, dtype))]
        # Emulated, a type can take a hundred times as long: a look at a quarter of the rows tells.
        first = _race({dtype: _products(rows // 4, width, dtype, device) for dtype in dtypes}, device, 0)
        whole = {dtype: _products(rows, width, dtype, device) for dtype in _hopeful(first)}
        times = _race(whole, device, most_seconds)
    looks = {dtype: _judged(first[dtype], 0)[0] for dtype in dtypes}
    hopeless = {dtype: _Speed(look.low / 4, look.high / 4, True) for dtype, look in looks.items()}
    return hopeless | {dtype: _judged(times[dtype], most_seconds)[0] for dtype in times}


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _judged(passes: list[tuple[float, float]], most_seconds: float) -> tuple[_Speed, bool]:
    """Whether that is enough, too."""
    seconds = [number for each in passes for number in each]
    *speed, is_done = torch.ops.bottomless.speed_of_passes(
        seconds, _THREADS, min(_QUIET_SECONDS, most_seconds), most_seconds
    )
    return _Speed(*speed), is_done


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


def _race(work: _Work, device: torch.device, most_seconds: float) -> _Times:
    """The times of passes, in turns, after a warm-up; whoever has fallen behind for good takes no further part."""
    times: _Times = {dtype: [] for dtype in work}
    for each in work.values():
        _pass(each, device)
    while True:
        running = list(work) if len(times[torch.float32]) < 2 else _hopeful(times)
        for dtype in running:
            times[dtype].append(_pass(work[dtype], device))
        if len(times[torch.float32]) >= 2 and all(_judged(times[dtype], most_seconds)[1] for dtype in running):
            return times


def _hopeful(times: _Times) -> list[torch.dtype]:
    best = {dtype: min(map(min, passes)) for dtype, passes in times.items()}
    return [dtype for dtype in times if best[dtype] <= _HOPELESS * best[torch.float32]]


def _pass(work: Callable[[], None], device: torch.device) -> tuple[float, float]:
    on_processor = device.type == "cpu"
    finish = (lambda: None) if on_processor else (lambda: torch.accelerator.synchronize(device))
    finish()
    begin, begin_processor = time.perf_counter(), time.thread_time()
    work()
    finish()
    wall, processor = time.perf_counter() - begin, time.thread_time() - begin_processor
    return wall, processor if on_processor else wall


def _main() -> None:
    try:
        fixed = _fixed()
    except ValueError as error:
        sys.exit(f"bottomless: {error}")
    speeds = _known_or_measured(torch.device("cpu"))
    plain = speeds[torch.float32]
    factors = {
        _name(dtype): sorted((speeds[dtype].low / plain.low, speeds[dtype].high / plain.high))
        for dtype in _NARROW
        if dtype in speeds
    }
    report = {
        "chosen": _name(fixed or choose(_seconds_of(speeds))),
        "set_by": "measurement" if fixed is None else VARIABLE,
        "speed": {name: [round(factor, 3) for factor in both] for name, both in factors.items()},
        "quiet": _is_quiet(speeds),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    _main()
