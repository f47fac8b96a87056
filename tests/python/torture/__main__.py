"""python -m torture [--programs N | --minutes N] [--seed S] [--jobs N]: exit code 1 if a program went wrong."""

import argparse
import collections
import gc
import itertools
import json
import os
import time

from .grammar import program
from .runner import add_up, judge, shortened


def parsed():
    parser = argparse.ArgumentParser(prog="torture", description="random programs, plain and inside limits")
    parser.add_argument("--programs", type=int, default=200, help="how many; 200 unless told")
    parser.add_argument("--minutes", type=float, help="for how long, instead")
    parser.add_argument("--seed", default=None, help="of the first program; the time unless told")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="so many at a time; as many as cores unless told"
    )
    parser.add_argument("--only", help="one program by its name, as printed: SEED-NUMBER")
    parser.add_argument("--print", action="store_true", help="print the program of --only, do not run it")
    parser.add_argument("--keep", default=".", help="where scripts of programs that went wrong go")
    return parser.parse_args()


def report(name, verdict, made, keep):
    print(f"{name} went wrong:", *verdict.wrong, sep="\n  ", flush=True)
    print("made shorter:", flush=True)
    text = shortened(made).script()
    print(text, flush=True)
    with open(os.path.join(keep, f"torture-{name}.py"), "w") as file:
        file.write(text + "\n")


def work(options, seed, job, began):
    """Every program whose number is this job's."""
    total = dict.fromkeys(
        ("programs", "wrong", "not_reproducible", "statements", "failed_statements", "limits_raised"), 0
    )
    for number in itertools.count(job, options.jobs):
        if time.monotonic() - began >= 60 * options.minutes if options.minutes else number >= options.programs:
            return total
        name = f"{seed}-{number}"
        made = program(name)
        verdict = judge(made)
        add_up(total, verdict.counters)
        total["programs"] += 1
        total["statements"] += len(made.statements)
        total["failed_statements"] += verdict.statements_failed
        total["limits_raised"] += verdict.rounds
        if not verdict.reproducible:
            total["not_reproducible"] += 1
            print(f"{name}: plain PyTorch does not end the same way twice: {verdict.why[-1500:]}", flush=True)
        if verdict.wrong:
            total["wrong"] += 1
            report(name, verdict, made, options.keep)


def in_parallel(options, seed):
    began, children = time.monotonic(), []
    for job in range(options.jobs):
        out, back = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(back, json.dumps(work(options, seed, job, began)).encode())
            os._exit(0)
        os.close(back)
        children.append((child, out))
    total = collections.Counter()
    for child, out in children:
        with open(out) as file:
            total.update(json.loads(file.read() or '{"wrong": 1, "programs": 0}'))
        os.waitpid(child, 0)
    minutes = (time.monotonic() - began) / 60
    return {"seed": seed, "per_minute": round(total["programs"] / minutes), **total}


def main():
    options = parsed()
    gc.freeze()  # a child shall not copy what it only counts
    if options.only and options.print:
        print(program(options.only).script())
        return 0
    if options.only:
        made = program(options.only)
        verdict = judge(made)
        print(verdict)
        if verdict.wrong:
            report(options.only, verdict, made, options.keep)
        return 1 if verdict.wrong else 0
    summary = in_parallel(options, options.seed or str(int(time.time())))
    print(json.dumps(summary))
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
