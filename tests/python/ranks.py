"""Programs of several ranks: tests start them with run_ranks(), and inside of a rank begin() and end() are its frame."""

import concurrent.futures
import json
import os
import pathlib
import socket
import sys
import tempfile

from helpers import HANGS, run


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def outcomes_of_ranks(code, *arguments, ranks=2, env=None, timeout=HANGS, prefixes=None):
    """Runs the program once per rank, with the environment that torchrun gives them; how each ended, and what it found.

    `prefixes`: by rank, words to put before its command.
    """
    paths = [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
    environment = {
        "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), **(env or {}),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        results = [pathlib.Path(directory, str(rank)) for rank in range(ranks)]

        def run_rank(rank):
            command = [*(prefixes[rank] if prefixes else ()), sys.executable, "-c", code, *map(str, arguments)]
            return run(command, env={**environment, "RANK": str(rank), "RESULT": str(results[rank])}, timeout=timeout)

        with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
            outcomes = list(pool.map(run_rank, range(ranks)))
        return outcomes, [json.loads(result.read_text()) if result.exists() else None for result in results]


def run_ranks(code, *arguments, ranks=2, **how):
    """What each rank found, if all of them end well."""
    outcomes, results = outcomes_of_ranks(code, *arguments, ranks=ranks, **how)
    said = "\n".join(f"rank {rank}, {outcome.code}: {outcome.err}" for rank, outcome in enumerate(outcomes))
    assert [outcome.code for outcome in outcomes] == [0] * ranks, said
    return results


# Inside of a rank.


def begin(seconds=HANGS):
    """This rank, and how many there are. A rank that hangs shows where, and ends."""
    import faulthandler

    import torch
    import torch.distributed as dist

    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds, exit=True)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


def end(result):
    import torch.distributed as dist

    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
