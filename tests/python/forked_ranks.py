"""Several ranks on this machine, as torchrun would start them. They are forked from one program that has imported all."""

import json
import os
import signal
import subprocess
import sys

from ranks import free_port

HERE = os.path.dirname(__file__)

_START = """
import faulthandler, json, os, sys
import torch, torch.distributed as dist, bottomless
from torch import nn
from helpers import fingerprints, check_moved
# No thread has been started yet: a fork would lose it.
port, folder, ranks, arguments = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
children = []
for rank in range(ranks):
    child = os.fork()
    if child == 0:
        break
    children.append(child)
if len(children) == ranks:
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(0 if codes == [0] * ranks else 1)
os.environ |= dict(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo")
faulthandler.dump_traceback_later({timeout}, exit=True)
torch.set_num_threads(1)
dist.init_process_group("gloo")


def result(value):
    with open(os.path.join(folder, str(rank)), "w") as file:
        json.dump(value, file)


{program}
"""


class Ranks:
    """A program on several ranks, under way. It finds `rank`, `ranks`, `arguments`, and gives back by `result(...)`."""

    def __init__(self, program, ranks, folder, *arguments, timeout=60, env=None):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._ranks, self._timeout = folder, ranks, timeout
        paths = [HERE, os.environ.get("PYTHONPATH", "")]
        code = _START.replace("{timeout}", str(timeout)).replace("{program}", program)
        words = [sys.executable, "-c", code, str(free_port()), str(folder), str(ranks), json.dumps(arguments, default=str)]
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace",
            env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))}, start_new_session=True,
        )  # fmt: skip

    def kill(self):
        """All of them, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.communicate()[0]

    def results(self):
        try:
            out, _ = self._process.communicate(timeout=self._timeout + 10)
        except subprocess.TimeoutExpired:
            out = self.kill() + f"\nended by the test after {self._timeout + 10} s"
        assert self._process.returncode == 0, out
        return [json.loads((self._folder / str(rank)).read_text()) for rank in range(self._ranks)]

    @property
    def running(self):
        return self._process.poll() is None


def run_ranks(program, ranks, folder, *arguments, **how):
    return Ranks(program, ranks, folder, *arguments, **how).results()
