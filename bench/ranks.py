"""Ranks whose parameters lie on slow disks, one disk for each rank. Everything in turns; medians of the rounds.

    .venv/bin/python bench/ranks.py [--ranks 1,2,4,8] [--batches 2,32,512] [--bandwidth 24MiB] [--rounds 3] [--json]

Reading: forward passes over a model that grows with the ranks, so that each of them has the same to read and more than its
memory holds, where
  all read      every parameter is spread over all ranks (stage 3); whoever needs it pulls the shares from all of them
  owner reads   every parameter has one owner, who reads it and broadcasts it, as systems before ZeRO-Infinity did; owners
                take turns, layer by layer
each with and without what is done ahead of time. Ahead: owners read their next layers, too, while others broadcast.

Overlap: training steps of stage 3 on two ranks, with and without what is done ahead of time.

Without (BOTTOMLESS_MOVEMENT=when_needed) nothing follows the plan: a block is read from disk, and a parameter gathered, only
once an operator needs it and waits, and a block is written only once its room is needed. Reduction of gradients in backward
and the threads that answer other ranks stay.

The tables show, beside the seconds of a pass, what each rank has read from its disk for it. A share is read again for a rank
that asks for it much later than others did; a plan keeps in memory what fits. A star: there was no plan, as its record would
have taken too much of so little memory.

Every process has one compute thread, and sizes are such that disks are the bottleneck, up to 8 ranks on few cores. Disks
are throttled inside of Bottomless (BOTTOMLESS_DISK_BANDWIDTH).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import statistics
import sys
import tempfile
import time
import traceback
from typing import Callable

import torch
import torch._dynamo  # optimizers import it when they are first used; ranks are forked after that
import torch.distributed as dist

import bottomless

WIDTH = 512
LAYER_BYTES = WIDTH * WIDTH * 4
AHEAD, WHEN_NEEDED = "planned", "when_needed"
WARM_UP = {AHEAD: 5, WHEN_NEEDED: 1}  # passes: a plan is made once passes repeat, then followed
COUNTERS = ("read_bytes", "written_bytes", "planned_fetches", "planned_hits", "demand_fetches")


@dataclasses.dataclass(frozen=True)
class Job:
    """What one group of ranks does."""

    work: Callable
    ranks: int
    layers: int
    movement: str
    memory: str
    batch: int = 1


@contextlib.contextmanager
def sharded_model(job: Job):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(job.layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    sharded = bottomless.shard(model, optimizer, stage=3, deadline=300)
    yield model, optimizer
    sharded.close()


@contextlib.contextmanager
def all_read(job: Job):
    with sharded_model(job) as (model, _):

        def forward():
            with torch.no_grad():
                model(torch.ones(job.batch, WIDTH))
            bottomless.step()

        yield forward


@contextlib.contextmanager
def owner_reads(job: Job):
    owned = {layer: torch.ones(WIDTH, WIDTH) for layer in range(dist.get_rank(), job.layers, job.ranks)}

    def forward():
        values = torch.ones(job.batch, WIDTH)
        for layer in range(job.layers):
            whole = torch.empty(WIDTH, WIDTH)  # broadcast() may write to what it is given: an owned one would have to go to disk again
            if layer in owned:
                whole.copy_(owned[layer])
            dist.broadcast(whole, layer % job.ranks)
            values = torch.nn.functional.linear(values, whole)
            del whole
        bottomless.step()

    yield forward


@contextlib.contextmanager
def train(job: Job):
    with sharded_model(job) as (model, optimizer):

        def step():
            model(torch.ones(job.batch, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        yield step


def be_rank(rank: int, job: Job, options: argparse.Namespace, port: int, disk: pathlib.Path) -> dict:
    os.environ |= dict(RANK=str(rank), WORLD_SIZE=str(job.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ |= dict(GLOO_SOCKET_IFNAME="lo", BOTTOMLESS_DISK_BANDWIDTH=options.bandwidth, BOTTOMLESS_MOVEMENT=job.movement)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    disk.mkdir()
    seconds, warm_up = [], WARM_UP[job.movement]
    with bottomless.limit(job.memory, disk) as runtime, job.work(job) as one_pass:
        for turn in range(warm_up + options.passes):
            if turn == warm_up:
                before = runtime.stats()
            dist.barrier()
            begin = time.perf_counter()
            one_pass()
            dist.barrier()
            seconds.append(time.perf_counter() - begin)
        after = runtime.stats()
    dist.destroy_process_group()
    counts = {name: (after[name] - before[name]) / options.passes for name in COUNTERS}
    return {"seconds": statistics.median(seconds[warm_up:]), **counts}


def run(job: Job, options: argparse.Namespace) -> dict:
    """The seconds of a pass, and by rank its counters. Ranks are forked from this process, which has no threads."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        found = [pathlib.Path(scratch, f"found{rank}") for rank in range(job.ranks)]

        def fork(rank: int) -> int:
            child = os.fork()
            if child != 0:
                return child
            code = 1
            try:  # whatever happens, nothing of what the parent does at its end may happen here
                result = be_rank(rank, job, options, port, pathlib.Path(scratch, f"disk{rank}"))
                found[rank].write_text(json.dumps(result))
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)

        children = [fork(rank) for rank in range(job.ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            sys.exit(f"bench/ranks.py: {job}: ranks ended with {codes}")
        ranks = [json.loads(file.read_text()) for file in found]
    return {"seconds": ranks[0]["seconds"], "movement": job.movement, **{name: [rank[name] for rank in ranks] for name in COUNTERS}}


def in_turns(jobs: dict[str, Job], options: argparse.Namespace) -> dict[str, dict]:
    """Of each job the median of all rounds, and the counters of its last."""
    rounds: dict[str, list] = {name: [] for name in jobs}
    for _ in range(options.rounds):
        for name, job in jobs.items():
            rounds[name].append(run(job, options))
    return {
        name: {**each[-1], "seconds": statistics.median(turn["seconds"] for turn in each), "rounds": [t["seconds"] for t in each]}
        for name, each in rounds.items()
    }


def cell(result: dict) -> str:
    """Seconds, and what a rank has read from its disk meanwhile. With a star: there was no plan to be ahead by."""
    star = "*" if result["movement"] == AHEAD and not any(result["planned_fetches"]) else " "
    return f"{result['seconds']:>8.2f} s{statistics.mean(result['read_bytes']) / 2**20:>7.1f} MiB{star}"


def compare_reading(options: argparse.Namespace, say: Callable) -> list[dict]:
    share = f"{options.layers * LAYER_BYTES >> 20} MiB of parameters"
    say(f"forward passes; for each rank {share}, {options.memory} of memory and {options.bandwidth}/s from disk")
    say(f"{'':>5} {'ahead of time':^52}   {'when needed':^52}")
    say(f"{'ranks':>5} " + 2 * f"{'all read':>22}{'owner reads':>22}{'ratio':>8}   ")
    rows = []
    for ranks in options.ranks:
        jobs = {
            f"{name}, {movement}": Job(work, ranks, ranks * options.layers, movement, options.memory)
            for movement in (AHEAD, WHEN_NEEDED)
            for name, work in (("all read", all_read), ("owner reads", owner_reads))
        }
        results = in_turns(jobs, options)
        pairs = list(results.values())[:2], list(results.values())[2:]
        ratios = [owner["seconds"] / all_of_them["seconds"] for all_of_them, owner in pairs]
        line = "   ".join(f"{cell(a):>22}{cell(b):>22}{ratio:>8.2f}" for (a, b), ratio in zip(pairs, ratios))
        say(f"{ranks:>5} {line}")
        rows.append({"ranks": ranks, "jobs": results, "ratio_ahead": ratios[0], "ratio_when_needed": ratios[1]})
    return rows


def compare_overlap(options: argparse.Namespace, say: Callable) -> list[dict]:
    say(f"training steps of {options.layers * LAYER_BYTES >> 20} MiB on 2 ranks, each with {options.training_memory} of memory")
    say(f"{'batch':>5} {'ahead of time':>22}{'when needed':>22}{'ratio':>8}")
    rows = []
    for batch in options.batches:
        results = in_turns({name: Job(train, 2, options.layers, name, options.training_memory, batch) for name in (AHEAD, WHEN_NEEDED)}, options)
        ahead, late = results.values()
        ratio = late["seconds"] / ahead["seconds"]
        say(f"{batch:>5} {cell(ahead):>22}{cell(late):>22}{ratio:>8.2f}")
        rows.append({"batch": batch, "jobs": results, "ratio": ratio})
    return rows


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[1, 2, 4, 8], help="for reading; '': leave it out")
    parser.add_argument("--batches", type=numbers, default=[2, 32, 512], help="for overlap; '': leave it out")
    parser.add_argument("--bandwidth", default="24MiB", help="of each rank's disk, a second")
    parser.add_argument("--memory", default="12MiB", help="of each rank")
    parser.add_argument("--training-memory", default="24MiB", help="of each rank, for overlap")
    parser.add_argument("--layers", type=int, default=24, help="of 1 MiB each: for each rank in reading, in all for overlap")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=2, help="that are measured in each round, after those that warm up")
    parser.add_argument("--directory", default=".", help="where scratch directories go")
    parser.add_argument("--json", action="store_true", help="print one object at the end instead of tables")
    options = parser.parse_args()

    say = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    results = {
        "memory": options.memory,
        "bandwidth": options.bandwidth,
        "bytes_for_each_rank": options.layers * LAYER_BYTES,
        "reading": compare_reading(options, say),
        "overlap": compare_overlap(options, say),
    }
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
