"""Limits that end before the tensors made inside them, in every order; with "-" for a directory there is none.

    limits.py CASE DIRECTORY|-
"""

import contextlib
import gc
import itertools
import os
import statistics
import sys
import threading

import torch

import bottomless
from pressure import Training, digest, numbered, report, run_case

kept = []


def limit(disk, memory="12MiB"):
    return contextlib.nullcontext() if disk == "-" else bottomless.limit(memory, disk)


def tensors_outlive_it(disk):
    with limit(disk):
        kept.append(numbered())
        kept.append(Training().run())
        report()
    print(kept[1].run().digest(), digest(kept[0]))


def a_larger_one_follows(disk):
    """List operators are cut for the limit that their tensors live under, not for the one in force."""
    with limit(disk):
        kept.append(Training().run())
        report()
    with limit(disk, "256MiB"):
        print(kept[0].run().digest())


def left_by_an_exit(disk):
    with limit(disk):
        kept.append(Training().run())
        report()
        print(kept[0].digest())
        sys.exit(4)


def never_left(disk):
    """The context lives in a cycle that only the end of the interpreter takes apart."""
    stack = contextlib.ExitStack()
    stack.enter_context(limit(disk))
    cycle = [stack, Training().run()]
    cycle.append(cycle)
    report()
    print(cycle[1].digest())


def one_after_the_other(disk, freed_first):
    """Tensors of both work together, and go in either order; the second limit ends while those of the first live."""
    for seed in range(2):
        with limit(disk):
            kept.append(Training(seed).run())
            report()
    with limit(disk):
        for first, second in zip(kept[0].parameters, kept[1].parameters):
            first.data.add_(second.data)
        print(kept[0].digest(), kept[1].digest())
        del kept[["first", "second"].index(freed_first)]
        gc.collect()
        print(kept[0].run().digest())


def one_in_another(disk):
    """The inner one is refused, and the outer one goes on."""
    with limit(disk):
        training = Training().run()
        if disk != "-":
            with contextlib.suppress(ValueError):
                limit(disk)
                print("a limit was set inside another")
        print(training.run().digest())
        report()


def ended_by_another_thread(disk):
    """It is closed while operators run: what they allocate from then on is outside."""
    busy = threading.Event()
    training = Training()

    def train():
        training.run()
        report()
        busy.set()
        training.run(6)

    thread = threading.Thread(target=train)
    with limit(disk):
        thread.start()
        busy.wait()
    thread.join()
    print(training.digest())


def ended_under_busy_threads(disk):
    """They allocate and free all the time, and often no tensor is there that would keep the limit."""
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)
    done = threading.Event()

    def work():
        while not done.is_set():
            torch.empty(1 << 18)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with limit(disk):
            torch.ones(1 << 18)
    done.set()
    for thread in threads:
        thread.join()
    with limit(disk):
        print(Training().run().digest())
        report()


def holdings():
    """What a process can leak: open files, threads, mappings, memory."""
    with open("/proc/self/maps") as maps, open("/proc/self/status") as status:
        data = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
        return {
            "files": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "mappings": sum(1 for _ in maps),
            "data": data << 10,
        }


def again_and_again(disk):
    """Nothing is left of a limit whose tensors are gone.

    The libraries keep some memory for themselves, most of it in the first turns, and may take more once at any later
    one. What is lost with a limit is lost in every turn, so it shows in the median.
    """
    held = []
    for _ in range(12):
        with limit(disk):
            print(Training().run(1).digest())
            report()
        gc.collect()
        held.append(holdings())
    before, after = held[3], held[-1]
    assert after["files"] == before["files"] and after["threads"] == before["threads"], held
    for kind, allowed in (("mappings", 2), ("data", 512 << 10)):
        grown = [later[kind] - earlier[kind] for earlier, later in itertools.pairwise(held[3:])]
        assert statistics.median(grown) <= allowed, (kind, grown)


if __name__ == "__main__":
    run_case(globals())
