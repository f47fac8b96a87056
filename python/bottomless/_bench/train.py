"""Training under limits beside plain PyTorch: time, memory and bytes moved, runs in turns, medians over the rounds."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from bottomless import _core

from .one_run import MODELS

GRANULE = 1 << 24  # of a limit that is a share


@dataclass
class Variant:
    """One way to run the training, and what its runs came to."""

    name: str
    share: float | None = None  # of what plain PyTorch takes
    memory: str | None = None
    movement: str = "planned"
    update_in_backward: bool = False
    states: str | None = None  # of bottomless.optim; None: torch's fused AdamW
    deepspeed: bool = False
    runs: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    def median(self, key: str) -> float:
        return statistics.median(step[key] for run in self.runs for step in run["steps"])


class Progress:
    """A bar with the time left on a terminal, a line for each run elsewhere."""

    def __init__(self, runs: int) -> None:
        self._runs, self._begun, self._start = runs, 0, time.monotonic()

    def begin(self, work: str) -> None:
        done, self._begun = self._begun, self._begun + 1
        if not sys.stderr.isatty():
            print(f"run {self._begun} of {self._runs}: {work}", file=sys.stderr, flush=True)
            return
        left = f", {(time.monotonic() - self._start) / done * (self._runs - done) / 60:.0f} min left" if done else ""
        bar = "#" * (20 * done // self._runs)
        print(f"\r\033[K[{bar:.<20}] {100 * done // self._runs} %{left}: {work}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def variants_of(options: argparse.Namespace) -> list[Variant]:
    limits = [Variant(name, memory=name) for name in options.memory]
    limits += [Variant(f"{share} of it", share=fraction(share)) for share in options.share]
    found = [Variant("plain PyTorch"), *limits] if options.plain else list(limits)
    for limit in limits:
        if options.update_in_backward:
            found.append(
                Variant(f"{limit.name}, update in backward", limit.share, limit.memory, update_in_backward=True)
            )
        for states in options.states:
            name = f"{limit.name}, {states} states" + (", update in backward" if options.update_in_backward else "")
            found.append(
                Variant(
                    name, limit.share, limit.memory, update_in_backward=options.update_in_backward, states=states
                )
            )
    if options.paging:
        found += [
            Variant(f"{limit.name}, as paging does", limit.share, limit.memory, movement="when_needed")
            for limit in limits
        ]
    if options.deepspeed:
        found.append(Variant("DeepSpeed ZeRO-Infinity", deepspeed=True))
    return found


def fraction(text: str) -> float:
    above, _, below = text.partition("/")
    value = float(above) / float(below or 1)
    if not 0 < value <= 1:
        raise ValueError(f"--share {text}: must be above 0 and at most 1")
    return value


def run_once(variant: Variant, options: argparse.Namespace, need: int | None) -> dict[str, Any]:
    memory = variant.memory
    if variant.share is not None and need is not None:
        memory = f"{max(int(need * variant.share) // GRANULE, 1) * GRANULE}B"
        variant.memory = memory
    request = {
        **{name: getattr(options, name) for name in ("model", "sequence", "steps", "warm_up", "clip")},
        "checkpointing": options.checkpointing == "all" or (options.checkpointing == "deepspeed" and variant.deepspeed),
        "disk": options.disk,
        "memory": memory,
        "update_in_backward": variant.update_in_backward,
        "states": variant.states,
        "deepspeed": variant.deepspeed,
    }
    environment = {**os.environ, "BOTTOMLESS_MOVEMENT": variant.movement, "TOKENIZERS_PARALLELISM": "false"}
    python = options.deepspeed if variant.deepspeed else sys.executable
    script = ["-m", "bottomless._bench.one_run"]
    if variant.deepspeed:  # its interpreter need not have this package
        script = [os.path.join(os.path.dirname(__file__), "one_run.py")]
    try:
        done = subprocess.run([python, *script, json.dumps(request)], capture_output=True, text=True, env=environment)
    except OSError as error:
        raise RuntimeError(str(error)) from error
    if done.returncode < 0:
        raise RuntimeError(f"ended by signal {-done.returncode}" + (", out of memory?" if done.returncode == -9 else ""))
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"ended with code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def run_all(variants: list[Variant], options: argparse.Namespace) -> None:
    progress = Progress(options.rounds * len(variants))
    first = variants[0]
    for number in range(options.rounds):
        for variant in variants:
            progress.begin(f"{variant.name}, round {number + 1} of {options.rounds}")
            if variant.failure is not None:
                continue
            need = first.runs[0]["grown"] if first.runs else None
            try:
                variant.runs.append(run_once(variant, options, need))
            except RuntimeError as error:
                variant.failure = str(error)
                if variant is first:
                    progress.end()
                    sys.exit(f"bottomless: bench train: {first.name} did not run, so nothing can be compared: {error}")
    progress.end()


def rows_of(variants: list[Variant]) -> list[dict[str, Any]]:
    first = variants[0]
    rows = []
    for variant in variants:
        row: dict[str, Any] = {"run": variant.name, "memory": variant.memory, "failure": variant.failure}
        rows.append(row)
        if not variant.runs:
            continue
        ratios = [
            statistics.median(step["seconds"] for step in mine["steps"])
            / statistics.median(step["seconds"] for step in beside["steps"])
            for mine, beside in zip(variant.runs, first.runs)
        ]
        row |= {
            "step_seconds": variant.median("seconds"),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "peak_rss": max(run["peak_rss"] for run in variant.runs),
            "bytes_per_parameter": variant.median("moved") / variant.runs[0]["parameters"],
            "losses_equal": all(run["losses"] == first.runs[0]["losses"] for run in variant.runs),
        }
        if "stall_seconds" in variant.runs[0]["steps"][0]:
            steps = [step for run in variant.runs for step in run["steps"]]
            fetches = sum(step["planned_fetches"] + step["demand_fetches"] for step in steps)
            row |= {
                "stall_seconds": variant.median("stall_seconds"),
                "planned": sum(step["planned_fetches"] for step in steps) / fetches if fetches else None,
                "faults": sum(step["faults"] for step in steps),
            }
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    width = max(len(row["run"]) for row in rows)
    print(f"{'':{width}} {'limit':>10} {'s/step':>8} {'ratio':>7} {'peak RSS':>10} {'bytes/par.':>10} {'waiting':>8} "
          f"{'planned':>8} {'losses equal'}")  # fmt: skip
    for row in rows:
        if row.get("failure"):
            print(f"{row['run']:{width}} did not run: {row['failure']}")
            continue
        limit = _core.format_bytes(_core.parse_bytes(row["memory"])) if row["memory"] else "-"
        waiting = f"{row['stall_seconds']:.2f} s" if "stall_seconds" in row else "-"
        planned = f"{100 * row['planned']:.1f} %" if row.get("planned") is not None else "-"
        print(
            f"{row['run']:{width}} {limit:>10} {row['step_seconds']:8.2f} {row['ratio']:6.2f}x "
            f"{_core.format_bytes(row['peak_rss']):>10} {row['bytes_per_parameter']:10.1f} {waiting:>8} {planned:>8} "
            f"{'yes' if row['losses_equal'] else 'no'}"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bottomless bench train", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="124M", help="a size of GPT-2 (default: 124M)")
    parser.add_argument("--sequence", type=int, default=512, help="tokens, a batch of one (default: 512)")
    parser.add_argument("--memory", action="append", default=[], help="a limit; may be repeated")
    parser.add_argument("--share", action="append", default=[],
                        help="a limit as a share of what plain PyTorch takes; may be repeated "
                             "(default: 1/2, 1/4 and 1/8, if there is no --memory)")  # fmt: skip
    parser.add_argument("--disk", default="/tmp", help="directory for what does not fit (default: /tmp)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all take their turn (default: 3)")
    parser.add_argument("--steps", type=int, default=3, help="steps measured in each run (default: 3)")
    parser.add_argument("--warm-up", type=int, default=4, help="steps before those (default: 4)")
    parser.add_argument("--no-clip", dest="clip", action="store_false", help="do not clip gradients by their norm")
    parser.add_argument(
        "--checkpointing",
        choices=["all", "deepspeed"],
        nargs="?",
        const="all",
        help="recompute activations in backward: in all runs, or in DeepSpeed's only, which keeps them in memory",
    )
    parser.add_argument("--no-plain", dest="plain", action="store_false",
                        help="leave out plain PyTorch, for what it cannot do; the first --memory is compared with then")  # fmt: skip
    parser.add_argument("--no-paging", dest="paging", action="store_false",
                        help="leave out the runs that fetch what is touched and evict by recency, as the operating "
                             "system's paging does")  # fmt: skip
    parser.add_argument("--update-in-backward", action="store_true", help="also with that option; needs --no-clip")
    parser.add_argument("--states", action="append", default=[], choices=["float32", "bfloat16", "8bit"],
                        help="also with bottomless.optim.AdamW and states of this format; may be repeated")  # fmt: skip
    parser.add_argument("--deepspeed", metavar="PYTHON", help="an interpreter that has DeepSpeed, to run it too "
                        "(default: this one, if it does)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    if options.plain and not options.memory and not options.share:
        options.share = ["1/2", "1/4", "1/8"]
    if min(options.rounds, options.steps, options.sequence) < 1 or options.warm_up < 0:
        parser.error("--rounds, --steps and --sequence: at least 1")
    if not options.plain and (options.share or not options.memory):
        parser.error("--no-plain: a share of nothing; say --memory")
    if options.update_in_backward and options.clip:
        parser.error("--update-in-backward: gradients cannot be clipped by their norm then; add --no-clip")
    for memory in options.memory:
        try:
            _core.parse_bytes(memory)
        except ValueError as error:
            parser.error(f"--memory: {error}")
    for share in options.share:
        try:
            fraction(share)
        except (ValueError, ZeroDivisionError) as error:
            parser.error(str(error) if str(error).startswith("--share") else f"--share {share}: not a share")
    if importlib.util.find_spec("transformers") is None:
        parser.exit(1, "bottomless: bench train: the models come from transformers: pip install transformers\n")
    if options.deepspeed is None and importlib.util.find_spec("deepspeed") is not None:
        options.deepspeed = sys.executable
    return options


def main() -> None:
    options = parse()
    variants = variants_of(options)
    run_all(variants, options)
    rows = rows_of(variants)
    parameters = variants[0].runs[0]["parameters"]
    if options.json:
        print(json.dumps({"model": options.model, "parameters": parameters, "rows": rows}))
        return
    clipping = "gradients clipped" if options.clip else "no clipping"
    print(f"GPT-2 {options.model}, float32, batch 1 x {options.sequence}, fused AdamW, {clipping}; medians of "
          f"{options.rounds} rounds of {options.steps} steps")  # fmt: skip
    print_table(rows)


if __name__ == "__main__":
    main()
