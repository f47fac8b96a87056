"""GPT-2 under a limit against plain PyTorch: ratio of step times, runs alternating, median over the rounds.

    .venv/bin/python bench/train_ratio.py --model 124M --memory 16GiB --memory 0.25 --rounds 3

A memory below 1 is a share of what the unlimited run needs. Each run is its own process: one plain, then one for each
limit, and again. Prints a table, and with --json one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

MODELS = {"6M": (4, 256, 4), "124M": (12, 768, 12), "355M": (24, 1024, 16), "774M": (36, 1280, 20)}


def train(model_name: str, sequence: int, steps: int, memory: str | None, disk: str) -> dict:
    """One run in this process; the first step warms up and does not count."""
    import torch

    runtime = None
    if memory is not None:
        import bottomless

        runtime = bottomless.limit(memory, disk)
    from transformers import AutoModelForCausalLM, GPT2Config

    layers, width, heads = MODELS[model_name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        GPT2Config(n_layer=layers, n_embd=width, n_head=heads, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 50257, (1, sequence), generator=torch.Generator().manual_seed(1))
    seconds, losses = [], []
    for _ in range(steps + 1):
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()).hex())
        seconds.append(time.perf_counter() - start)
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return {"seconds": seconds[1:], "losses": losses, "peak_rss": peak, "stats": runtime.stats() if runtime else None}


def run_child(options: argparse.Namespace, memory: str | None) -> dict:
    command = [sys.executable, __file__, "--child", "--model", options.model, "--sequence", str(options.sequence)]
    command += ["--steps", str(options.steps), "--disk", options.disk]
    if memory is not None:
        command += ["--memory", memory]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"})
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="124M")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="append", default=[])
    parser.add_argument("--disk", default="/tmp")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        memory = options.memory[0] if options.memory else None
        print(json.dumps(train(options.model, options.sequence, options.steps, memory, options.disk)))
        return

    import bottomless._core as core

    shares = [m for m in options.memory if m.replace(".", "", 1).isdigit() and float(m) < 1]
    need = run_child(options, "64GiB")["stats"]["peak_bytes"] if shares else None
    limits = [str(int(need * float(m))) if m in shares else m for m in options.memory]
    runs: dict[str, list[dict]] = {"plain": []} | {label: [] for label in options.memory}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        runs["plain"].append(run_child(options, None))
        for label, memory in zip(options.memory, limits):
            runs[label].append(run_child(options, memory))
    rows = []
    for label, results in runs.items():
        ratios = [
            statistics.median(r["seconds"]) / statistics.median(p["seconds"]) for r, p in zip(results, runs["plain"])
        ]
        rows.append(
            {
                "run": label,
                "step_seconds": statistics.median(s for r in results for s in r["seconds"]),
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "peak_rss": max(r["peak_rss"] for r in results),
                "losses_equal": all(r["losses"] == runs["plain"][0]["losses"] for r in results),
                "stats": results[-1]["stats"],
            }
        )
    if options.json:
        print(json.dumps({"model": options.model, "need_bytes": need, "rows": rows}))
        return
    print(f"GPT-2 {options.model}, batch 1 x {options.sequence}" + (f", needs {core.format_bytes(need)}" if need else ""))
    print(f"{'memory':>10} {'s/step':>8} {'ratio':>7} {'peak RSS':>10} {'read/step':>10} {'written':>10} losses equal")
    for row in rows:
        stats = row["stats"] or {"read_bytes": 0, "written_bytes": 0}
        moved = [core.format_bytes(int(stats[k] / (options.steps + 1))) for k in ("read_bytes", "written_bytes")]
        print(
            f"{row['run']:>10} {row['step_seconds']:8.2f} {row['ratio']:7.3f} {core.format_bytes(row['peak_rss']):>10} "
            f"{moved[0]:>10} {moved[1]:>10} {'yes' if row['losses_equal'] else 'NO'}"
        )


if __name__ == "__main__":
    main()
