"""The smallest limit at which each case of the matrix runs, and the operator that sets it.

    .venv/bin/python bench/smallest_limits.py [--only NAME]

Starts at the least limit there is and raises it to what each error message recommends. Prints a table: what the case
holds at its peak when nothing presses, the smallest limit, and the operator that did not fit into a smaller one.
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))

import conftest  # noqa: F401  the math mode that all tests use
import torch
from test_equality import WORKS
from test_matrix import CASES

import bottomless

MIB = 1 << 20
LEAST = 8 * MIB
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def peak_inside(work, memory: int) -> int:
    """Runs the work inside a limit; its peak, or OutOfMemoryError."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as disk, bottomless.limit(memory, disk) as runtime:
        results = work()
        del results
        gc.collect()
        return runtime.stats()["peak_bytes"]


def smallest(work) -> tuple[int, str]:
    memory, setter = LEAST, "the least limit there is"
    while True:
        try:
            peak_inside(work, memory)
            return memory, setter
        except torch.OutOfMemoryError as error:
            text = str(error)
        gc.collect()
        found = re.search(r"run (\S+): .* raise it to at least ([\d.]+) (\w+)", text)
        if not found:
            raise RuntimeError(text)
        setter = found[1]
        memory = max(int(float(found[2]) * UNITS[found[3]]) + MIB // 64, memory + MIB // 64)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="")
    only = arguments.parse_args().only
    print(f"{'case':32} {'peak':>10} {'smallest':>10}  set by")
    for work in [*CASES, *WORKS]:
        if not work.__name__.startswith(only):
            continue
        peak = peak_inside(work, 4096 * MIB)
        gc.collect()
        memory, setter = smallest(work)
        gc.collect()
        print(f"{work.__name__:32} {peak / MIB:6.1f} MiB {memory / MIB:6.1f} MiB  {setter}", flush=True)


if __name__ == "__main__":
    main()
