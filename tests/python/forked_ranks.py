"""Several ranks on this machine, as torchrun would start them, but forked from one process that has imported everything."""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys

from helpers import HANGS
from ranks import free_port

HERE = os.path.dirname(__file__)

# Forks the ranks of one job after another; it never computes, so there is no thread that a fork would lose.
_NURSERY = """
import faulthandler, json, os, sys
import torch, torch._dynamo, torch.distributed as dist, bottomless  # optimizers import _dynamo when they are first used
from torch import nn
from helpers import check_moved, fingerprints


def be_rank(job, rank):
    ranks, folder = job["ranks"], job["folder"]
    output = os.open(os.path.join(folder, "output"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.dump_traceback_later(job["timeout"], exit=True)
    os.environ |= dict(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job["port"]))
    os.environ |= dict(GLOO_SOCKET_IFNAME="lo") | job["env"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def result(value):
        with open(os.path.join(folder, str(rank)), "w") as file:
            json.dump(value, file)

    names = dict(globals(), rank=rank, ranks=ranks, arguments=job["arguments"], result=result)
    exec(compile(job["program"], "the program of the ranks", "exec"), names)


def code_of(child):
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


print("ready", flush=True)
children = []
for line in sys.stdin:
    job = json.loads(line)
    for child in children:  # only now are their numbers free for others: somebody may have been about to kill them
        os.waitpid(child, 0)
    children = []
    for rank in range(job["ranks"]):
        child = os.fork()
        if child == 0:
            sys.stdin = open(os.devnull)
            be_rank(job, rank)
            sys.exit(0)
        children.append(child)
    print(json.dumps(children), flush=True)
    print(json.dumps([code_of(child) for child in children]), flush=True)
"""


@functools.cache
def _nursery():
    paths = [HERE, os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(
        [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    atexit.register(process.kill)
    assert process.stdout.readline() == "ready\n"
    return process


class Ranks:
    """A program on several ranks, under way; one at a time.

    It finds `rank`, `ranks` and `arguments`, torch, dist, nn and bottomless, and gives back by `result(...)`.
    """

    def __init__(self, program, ranks, folder, *arguments, timeout=HANGS, env=None):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        self._folder, self._ranks = folder, ranks
        job = dict(program=program, ranks=ranks, folder=folder, arguments=arguments, timeout=timeout, env=env or {})
        print(json.dumps(job | {"port": free_port()}, default=str), file=_nursery().stdin, flush=True)
        self._processes = json.loads(_nursery().stdout.readline())

    def kill(self):
        """All of them, at once. Returns what they have said."""
        for process in self._processes:
            os.kill(process, signal.SIGKILL)
        _nursery().stdout.readline()
        return self.output()

    def output(self):
        output = self._folder / "output"
        return output.read_text(errors="replace") if output.exists() else ""

    def results(self):
        codes = json.loads(_nursery().stdout.readline())  # each ends, if only by its timeout
        assert codes == [0] * self._ranks, f"{codes}\n{self.output()}"
        return [json.loads((self._folder / str(rank)).read_text()) for rank in range(self._ranks)]


def run_ranks(program, ranks, folder, *arguments, **how):
    return Ranks(program, ranks, folder, *arguments, **how).results()
