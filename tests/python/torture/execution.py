"""Runs one program in this process, plainly or inside a limit, and says all that can be seen of it."""

import ctypes
import faulthandler
import gc
import json
import os
import pathlib
import re
import signal
import sys
import threading

import numpy as np
import torch

import bottomless

from . import statements as helpers
from .training import Training

COUNTED = (
    "evictions",
    "faults",
    "written_bytes",
    "read_bytes",
    "demand_fetches",
    "planned_fetches",
    "deferred_updates",
    "steps",
)


class Execution:
    def __init__(self, program, limited, folder, disk):
        self.program, self.limited, self.folder = program, limited, pathlib.Path(folder)
        self.disks = [os.path.join(disk, str(n)) for n in range(program.disks)]
        self.runtime, self.counters, self.problems = None, dict.fromkeys(COUNTED, 0), []
        self.log, self.memory_lacked = {}, None
        self.names = {
            **{name: value for name, value in vars(helpers).items() if not name.startswith("_")},
            "torch": torch,
            "np": np,
            "os": os,
            "ctypes": ctypes,
            "gc": gc,
            "Training": Training,
            "t": {},
            "m": {},
            "path": lambda name: str(self.folder / name),
            "mark_step": self.mark_step,
            "reopen": self.reopen,
            "look": self.look,
            "signal_self": self.signal_self,
        }

    def run(self):
        torch.set_num_threads(self.program.threads)
        if self.program.eagerly:
            os.environ["BOTTOMLESS_EVICT_EAGERLY"] = "1"
        for directory in self.disks:
            os.mkdir(directory)
        self.open(1)
        for number, statement in enumerate(self.program.statements):
            self.do(statement, str(number))
            if self.memory_lacked:
                break
        result = {
            "log": self.log,
            "state": {} if self.memory_lacked else self.state(),
            "memory_lacked": self.memory_lacked,
        }
        if not self.program.ends_by_itself:
            self.names["t"].clear()
            self.names["m"].clear()
            gc.collect()
            self.close()
        elif self.runtime:
            self.count(self.runtime.stats())
        self.problems += [f"{directory} is not empty" for directory in self.disks if os.listdir(directory)]
        return result | {"counters": self.counters, "problems": self.problems}

    # --- statements ---

    def do(self, statement, number):
        if not isinstance(statement, str):
            return getattr(self, f"do_in_{statement.kind}")(statement.bodies, number)
        said = []
        names = {**self.names, "say": lambda x: said.append(helpers.digest_of(x) if torch.is_tensor(x) else repr(x))}
        try:
            exec(compile(statement, f"statement {number}", "exec"), names)
        except Exception as error:
            if self.limited and isinstance(error, torch.OutOfMemoryError) and "bottomless" in str(error):
                self.memory_lacked = [number, str(error)]
            elif "bottomless" in str(error):
                self.problems.append(f"statement {number}: {type(error).__name__}: {error}")
            said.append(type(error).__name__)
            del error
        if said:
            self.log[number] = said

    def do_all(self, body, number):
        for index, statement in enumerate(body):
            self.do(statement, f"{number}.{index}")

    def do_in_threads(self, bodies, number):
        threads = [threading.Thread(target=self.do_all, args=(body, f"{number}.{n}")) for n, body in enumerate(bodies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def do_in_fork(self, bodies, number):
        """The child says what it sees; nothing of what it does reaches the parent."""
        out, back = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.set_num_threads(1)  # OpenMP's threads do not live on in a child
                self.log.clear()
                self.folder = self.folder / number  # the parent goes on writing files meanwhile
                self.folder.mkdir()
                self.do_all(bodies[0], number)
                data = json.dumps([self.log, self.state(), self.problems, self.memory_lacked]).encode()
                while data:
                    data = data[os.write(back, data) :]
                status = 0
            finally:
                os._exit(status)
        os.close(back)
        self.do_all(bodies[1], f"{number}.parent")
        with open(out, "rb") as file:
            received = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            self.problems.append(f"the child of statement {number} ended with {status}")
            return
        log, state, problems, lacked = json.loads(received)
        self.log[number] = [log, state]
        self.problems += problems
        self.memory_lacked = self.memory_lacked or lacked

    def do_in_signals(self, bodies, number):
        out, back = os.pipe()
        os.set_blocking(out, False)
        os.set_blocking(back, False)
        mine, busy = torch.zeros(1 << 16), []

        def work(*_):
            if not busy:  # it may take longer than until the next signal
                busy.append(True)
                mine.add_(1)
                busy.clear()

        earlier = signal.signal(signal.SIGALRM, work)
        woken = signal.set_wakeup_fd(back, warn_on_full_buffer=False)
        signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
        try:
            self.do_all(bodies[0], number)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.set_wakeup_fd(woken)
            signal.signal(signal.SIGALRM, earlier)
            os.close(out)
            os.close(back)
        if not bool((mine == mine[0]).all()):
            self.problems.append(f"statement {number}: what the handler changed is not whole")

    # --- what statements may ask of the limit; nothing without one ---

    def open(self, share):
        if self.limited:
            memory = max(8 << 20, int(self.program.memory * share))
            self.runtime = bottomless.limit(memory, self.disks, **self.program.options)

    def close(self):
        if self.runtime:
            self.runtime.close()
            self.count(self.runtime.stats())
            self.runtime = None

    def count(self, stats):
        for name in COUNTED:
            self.counters[name] += stats[name]
        if stats["peak_bytes"] > stats["limit_bytes"]:
            self.problems.append(f"{stats['peak_bytes']} bytes were in memory, the limit is {stats['limit_bytes']}")

    def reopen(self, share):
        self.close()
        self.open(share)

    def mark_step(self):
        if self.runtime:
            self.runtime.step()

    def look(self):
        if self.runtime:
            self.runtime.stats()

    def signal_self(self, x):
        """A handler that works on a tensor, at a definite moment."""
        earlier = signal.signal(signal.SIGUSR1, lambda *_: x.detach().mul_(1).zero_())
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, earlier)

    # --- what is left at the end ---

    def state(self):
        digests = {f"t[{n}]": helpers.digest_of(x) for n, x in sorted(self.names["t"].items())}
        for n, training in sorted(self.names["m"].items()):
            digests |= {f"m[{n}].{name}": helpers.digest_of(x) for name, x in training.tensors().items()}
        for file in sorted(self.folder.iterdir()):
            if file.suffix == ".raw":
                digests[file.name] = helpers.hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        return digests


def advised(message):
    """The limit that an error asks for, in bytes."""
    found = re.search(r"raise it to at least ([\d.]+) (MiB|GiB)", message)
    return int(float(found[1]) * (1 << (20 if found[2] == "MiB" else 30))) + 1 if found else 0


_alive = None  # what a program that ends by itself has not freed by then


def be_child(program, limited, folder, disk, answer, deadline):
    """Never returns."""
    status = 1
    try:
        output = os.open(answer + ".output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable()
        faulthandler.dump_traceback_later(deadline, exit=False)
        global _alive
        _alive = Execution(program, limited, folder, disk)
        result = _alive.run()
        with open(answer, "w") as file:
            json.dump(result, file)
        status = 0
        if program.ends_by_itself:
            sys.exit(0)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        if status or not program.ends_by_itself:
            os._exit(status)
