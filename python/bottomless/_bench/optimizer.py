"""One step of AdamW over parameters in memory, by several optimizers in turns: bytes a second, beside what the memory
gives (STREAM's triad) in the same run. Medians over the rounds."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Callable

import torch

RATE = 1e-4


def tensors(elements: int, pieces: int, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.empty(elements // pieces, dtype=dtype).uniform_(-1, 1)) for _ in range(pieces)]
    for parameter in made:
        parameter.grad = torch.full_like(parameter, 0.01)
    return made


# Name: type of parameters, bytes of memory that an element's step reads and writes, how the optimizer is made.
Contender = tuple[torch.dtype, float, Callable[[Any], Any]]


def ours_and_torch() -> dict[str, Contender]:
    import bottomless.optim as ours

    make = lambda **options: lambda parameters: ours.AdamW(parameters, lr=RATE, **options)
    fused = lambda parameters: torch.optim.AdamW(parameters, lr=RATE, fused=True)
    f32, bf16 = torch.float32, torch.bfloat16
    return {
        "bottomless float32": (f32, 28, make()),
        "torch fused float32": (f32, 28, fused),
        "bottomless float32, bfloat16 states": (f32, 20, make(state_dtype=bf16)),
        "bottomless float32, 8-bit states": (f32, 16 + 16 / 256, make(state_dtype="8bit")),
        "bottomless bfloat16, float32 master and states": (bf16, 28, make()),
        "bottomless bfloat16, float32 master, bfloat16 states": (bf16, 20, make(state_dtype=bf16)),
        "bottomless bfloat16, float32 master, 8-bit states": (bf16, 16 + 16 / 256, make(state_dtype="8bit")),
        "bottomless float16, float32 master and states": (torch.float16, 28, make()),
        "bottomless all bfloat16": (bf16, 14, make(state_dtype=bf16, master_weights=False)),
        "torch fused all bfloat16": (bf16, 14, fused),
    }


def deepspeed() -> dict[str, Contender]:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.adam import DeepSpeedCPUAdam as Adam

    f32, bf16 = torch.float32, torch.bfloat16
    return {
        "DeepSpeed CPUAdam float32": (f32, 28, lambda it: Adam(it, lr=RATE)),
        "DeepSpeed CPUAdam bfloat16, float32 states": (bf16, 22, lambda it: Adam(it, lr=RATE, fp32_optimizer_states=True)),
        "DeepSpeed CPUAdam all bfloat16": (bf16, 14, lambda it: Adam(it, lr=RATE, fp32_optimizer_states=False)),
    }


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(contenders: dict[str, Contender], elements: int, rounds: int) -> list[dict[str, Any]]:
    """Each in turn, and the triad beside it; one of them at a time is in memory."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (dtype, size, make) in contenders.items():
            a, b, c = (torch.ones(elements // 4) for _ in range(3))
            optimizer = make(tensors(elements, 4, dtype))
            optimizer.step()  # makes the states
            triad = lambda: torch.add(b, c, alpha=3.0, out=a)
            triad()
            for _ in range(3):
                results[name].append((size * elements / seconds(optimizer.step), 12 * a.numel() / seconds(triad)))
            del optimizer
    return [
        {
            "optimizer": name,
            "bytes_per_parameter": contenders[name][1],
            "seconds": contenders[name][1] * elements / statistics.median(rate for rate, _ in rates),
            "bytes_per_second": statistics.median(rate for rate, _ in rates),
            "of_stream": statistics.median(rate / stream for rate, stream in rates),
        }
        for name, rates in results.items()
    ]


def in_child(python: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """DeepSpeed may live in an interpreter of its own, which need not have this package."""
    script = [python, __file__, "--child", "--elements", str(options.elements), "--rounds", str(options.rounds)]
    done = subprocess.run(script, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return [{"optimizer": "DeepSpeed CPUAdam", "failure": lines[-1] if lines else "ended"}]
    return json.loads(done.stdout.splitlines()[-1])


def print_table(rows: list[dict[str, Any]]) -> None:
    width = max(len(row["optimizer"]) for row in rows)
    print(f"{'':{width}} {'bytes/par.':>10} {'ms':>8} {'GB/s':>7} {'of STREAM':>10}")
    for row in rows:
        if "failure" in row:
            print(f"{row['optimizer']:{width}} failed: {row['failure']}")
            continue
        print(f"{row['optimizer']:{width}} {row['bytes_per_parameter']:>10.1f} {1000 * row['seconds']:>8.1f} "
              f"{row['bytes_per_second'] / 1e9:>7.1f} {row['of_stream']:>10.2f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="bottomless bench optimizer", description=__doc__)
    parser.add_argument("--elements", type=int, default=100_000_000, help="parameters (default: 100 million)")
    parser.add_argument("--rounds", type=int, default=5, help="how often all take their turn (default: 5)")
    parser.add_argument("--deepspeed", metavar="PYTHON", help="an interpreter that has DeepSpeed, to run it too")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.elements < 1024 or options.rounds < 1:
        parser.error("--elements: at least 1024; --rounds: at least 1")
    if options.child:
        print(json.dumps(measure(deepspeed(), options.elements, options.rounds)))
        return
    rows = measure(ours_and_torch(), options.elements, options.rounds)
    if options.deepspeed:
        rows += in_child(options.deepspeed, options)
    if options.json:
        print(json.dumps({"elements": options.elements, "rows": rows}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
