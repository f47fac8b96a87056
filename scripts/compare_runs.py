"""Compares two results of train_gpt, or with --share prints that share of the memory the first one needed, in bytes."""

import argparse
import json
import statistics
import sys


def gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float)
    parser.add_argument("results", nargs="+")
    options = parser.parse_args()
    runs = []
    for path in options.results:
        with open(path) as file:
            runs.append(json.load(file))
    if options.share is not None:
        step = 1 << 24
        print(int(runs[0]["needed_bytes"] * options.share) // step * step)
        return 0
    plain, limited = runs
    stats = limited["stats"]
    seconds = [statistics.median(run["step_seconds"][1:] or run["step_seconds"]) for run in runs]
    equal = plain["losses_hex"] == limited["losses_hex"] and plain["digest"] == limited["digest"]
    steps = len(limited["losses"])
    rows = [
        ("", "without limit", "with limit"),
        ("memory the process grew by", gib(plain["grown_bytes"]), gib(limited["grown_bytes"])),
        ("limit", "-", gib(stats["limit_bytes"])),
        ("peak counted against it", "-", gib(stats["peak_bytes"])),
        ("disk read per step", "-", gib(stats["read_bytes"] / steps)),
        ("disk written per step", "-", gib(stats["written_bytes"] / steps)),
        ("seconds per step (median)", f"{seconds[0]:.2f}", f"{seconds[1]:.2f}  ({seconds[1] / seconds[0]:.2f} x)"),
        ("last loss", f"{plain['losses'][-1]:.6f}", f"{limited['losses'][-1]:.6f}"),
        ("all losses, weights and states equal", "", "yes, bit for bit" if equal else "NO"),
    ]
    for name, left, right in rows:
        print(f"  {name:<38}{left:>16}{right:>24}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
