"""Shared by the tests: running programs with and without a limit, and comparing results bit by bit."""

import contextlib
import dataclasses
import gc
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import torch

import bottomless

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
HANGS = 900  # seconds: what takes longer will never end, however busy the machine is

KINDS = {"parameter", "gradient", "state", "activation", "other"}
COUNTERS = {
    "limit_bytes", "peak_bytes", "steps", "read_bytes", "written_bytes", "disk_bytes", "faults", "evictions", "planned_fetches",
    "planned_hits", "demand_fetches", "plan_departures", "deferred_updates", "overhead_bytes",
}  # fmt: skip
SECONDS = {"step_seconds", "stall_seconds"}
KEYS = COUNTERS | SECONDS | {"resident_bytes"}


def check_moved(stats):
    """The limit was kept, and it mattered: blocks left and were written."""
    assert stats["evictions"] > 0, stats
    assert stats["written_bytes"] > 0, stats
    assert 0 < stats["peak_bytes"] <= stats["limit_bytes"], stats


def fingerprints(tensors):
    """Each named tensor's type, shape and bits; equal only if every bit is. Gradients that are None stay None."""
    return {name: None if tensor is None else _fingerprint(tensor) for name, tensor in tensors.items()}


def _fingerprint(tensor):
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        return _fingerprint(tensor.indices()), _fingerprint(tensor.values())
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(flat.numpy()).hexdigest()


def training_state(model, optimizer=None):
    """All that training leaves behind: parameters, buffers, gradients and optimizer state, by name."""
    tensors = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        tensors[f"{name}.grad"] = parameter.grad
    for index, state in optimizer.state_dict()["state"].items() if optimizer else ():
        for name, value in state.items():
            if torch.is_tensor(value):
                tensors[f"state.{index}.{name}"] = value
            elif isinstance(value, list):
                tensors |= {f"state.{index}.{name}.{i}": part for i, part in enumerate(value) if torch.is_tensor(part)}
    return tensors


def same_under_limit(disk, work, memory="12MiB", seed=0):
    """Runs `work`, which returns named tensors, plainly and under a limit: every bit must be equal.

    Returns the stats of the limited run.
    """
    print(f"seed {seed}, memory {memory}")
    torch.manual_seed(seed)
    plain = fingerprints(work())
    gc.collect()
    torch.manual_seed(seed)
    with bottomless.limit(memory, disk) as runtime:
        results = work()
        stats = runtime.stats()
        limited = fingerprints(results)
    del results
    gc.collect()
    different = [name for name in plain if limited.get(name) != plain[name]]
    assert not different and limited.keys() == plain.keys()
    check_moved(stats)
    return stats


@contextlib.contextmanager
def limit(memory, disk, **options):
    """bottomless.limit that must have moved something by the time it ends well."""
    with bottomless.limit(memory, disk, **options) as runtime:
        yield runtime
    check_moved(runtime.stats())


@dataclasses.dataclass
class Outcome:
    """How a program ended."""

    code: int
    out: str
    err: str

    @property
    def stats(self):
        """The last line, which --json adds."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def lines(self):
        """What the program itself printed, when run with --json."""
        return self.out.splitlines()[:-1]


def run(command, timeout=HANGS, env=None, cwd=None):
    """Runs a program to its end; one that hangs is ended, with all that it started, and fails the test."""
    command = [os.fspath(word) for word in command]
    environment = {**os.environ, **(env or {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace",
        env=environment, cwd=cwd, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err += f"\nended by the test after {timeout} s"
    return Outcome(process.returncode, out, err)


def wait_until(condition, process):
    """Looks again and again, until it is so or the process has ended, which fails the test."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def bottomless_run():
    """The words that start a program under a limit: the C++ binary beside this Python, or the package itself."""
    binary = pathlib.Path(sys.executable).parent / "bottomless"
    return [binary, "run"] if binary.exists() else [sys.executable, "-m", "bottomless"]


def run_limited(program, memory, disk, *options, **how):
    return run([*bottomless_run(), "--memory", str(memory), "--disk", disk, *options, *program], **how)


def run_python(code, *arguments, **how):
    """Runs a piece of Python by itself; it finds these helpers."""
    paths = [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": os.pathsep.join(path for path in paths if path), **how.pop("env", {})}
    return run([sys.executable, "-c", code, *map(str, arguments)], env=env, **how)


def squeeze(mebibytes=32):
    """Fills memory with other tensors, so that every block that nobody holds has to leave."""
    return sum(float(tensor.sum()) for tensor in [torch.ones(1 << 18) for _ in range(mebibytes)])
