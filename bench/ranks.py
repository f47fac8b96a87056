"""Forward passes over a sharded model whose shares lie on slow disks, one for each rank: every parameter is read by all
ranks together, each its share (ours), or by the one that owns it as a whole (as systems before ZeRO-Infinity did); and
training steps with and without movement ahead of time. In turns, medians.

    bench/ranks.py [--ranks 1,2,4,8] [--bandwidth 64MiB] [--rounds 3]
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

LAYERS, WIDTH = 32, 1024  # 4 MiB each; training takes a quarter of them


def child(options):
    import torch
    import torch.distributed as dist

    import bottomless

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runtime = bottomless.limit(options.memory, options.disk)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS if options.work == "forward" else LAYERS // 4)))
    # An optimizer that nothing is known of gets whole parameters.
    kind = torch.optim.SGD if options.layout == "shares" else type("Unknown", (torch.optim.SGD,), {})
    optimizer = kind(model.parameters(), lr=1e-4)
    sharded = bottomless.shard(model, optimizer, stage=3)
    seconds = []
    for _ in range(options.passes):
        begin = time.perf_counter()
        if options.work == "forward":
            with torch.no_grad():
                model(torch.ones(1, WIDTH))
            bottomless.step()
        else:
            model(torch.ones(options.batch, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    stats = runtime.stats()
    sharded.close()
    if dist.get_rank() == 0:
        moved = {key: stats[key] for key in ("read_bytes", "planned_hits", "demand_fetches")}
        print(json.dumps({"seconds": statistics.median(seconds[2:]), **moved}))


def run(ranks, work, layout, options, movement="planned"):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        processes = []
        for rank in range(ranks):
            disk = pathlib.Path(scratch) / f"disk{rank}"
            disk.mkdir()
            environment = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "BOTTOMLESS_DISK_BANDWIDTH": options.bandwidth,
                "BOTTOMLESS_MOVEMENT": movement,
            }  # fmt: skip
            command = [sys.executable, __file__, "--child", "--work", work, "--layout", layout, "--disk", str(disk)]
            command += ["--memory", options.memory, "--passes", str(options.passes), "--batch", str(options.batch)]
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"bench/ranks.py: {work} on {ranks} ranks failed")
    return json.loads(outputs[0].splitlines()[-1])


def compare(ranks, options, sides):
    times = [[] for _ in sides]
    for _ in range(options.rounds):
        for side, arguments in enumerate(sides):
            times[side].append(run(ranks, *arguments[:2], options, *arguments[2:])["seconds"])
    return [statistics.median(each) for each in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--bandwidth", default="64MiB", help="of each rank's disk, a second")
    parser.add_argument("--memory", default="14MiB", help="of each rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--directory", default=".", help="where scratch directories go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    for name in ("work", "layout", "disk"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    print(f"{LAYERS * WIDTH * WIDTH * 4 >> 20} MiB of parameters, {options.memory} and a disk of {options.bandwidth}/s for each rank")
    print(f"{'ranks':>5} {'all read (s)':>13} {'owner reads (s)':>16} {'ratio':>6}")
    for ranks in map(int, options.ranks.split(",")):
        shares, whole = compare(ranks, options, [("forward", "shares"), ("forward", "whole")])
        print(f"{ranks:>5} {shares:>13.2f} {whole:>16.2f} {whole / shares:>6.2f}", flush=True)
    print(f"{'ranks':>5} {'ahead (s)':>13} {'on demand (s)':>16} {'ratio':>6}   training steps, batch {options.batch}")
    for ranks in [int(ranks) for ranks in options.ranks.split(",") if int(ranks) <= 2]:
        ahead, demand = compare(ranks, options, [("train", "shares"), ("train", "shares", "when_needed")])
        print(f"{ranks:>5} {ahead:>13.2f} {demand:>16.2f} {demand / ahead:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
