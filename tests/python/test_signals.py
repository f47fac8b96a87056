"""Signals while a limit is in force: handlers run between any two instructions of the thread they interrupt."""

import pytest

from helpers import run_python

HEADER = """
import _ctypes, os, pathlib, signal, sys
import torch
import bottomless
from helpers import squeeze

(disk,) = sys.argv[1:]
extensions = pathlib.Path(_ctypes.__file__).parent  # of the standard library
library = next(str(file) for file in sorted(extensions.glob("*.so")) if file.name.partition(".")[0] not in sys.modules)
out, into = os.pipe()
os.set_blocking(out, False)
os.set_blocking(into, False)
signal.set_wakeup_fd(into, warn_on_full_buffer=False)  # as asyncio does: the handler calls write()
heard = 0


def hear(*_):
    global heard
    heard += 1


signal.signal(signal.SIGALRM, hear)


def drain():
    try:
        return len(os.read(out, 1 << 16))
    except BlockingIOError:
        return 0


def until_heard(work, times=200):
    woken = 0
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    while heard < times:
        work()
        woken += drain()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert woken > 0
    print("heard")
"""

LOADING = """
with bottomless.limit("16MiB", disk):
    until_heard(lambda: _ctypes.dlclose(_ctypes.dlopen(library, os.RTLD_NOW)))
"""

SEARCHING = """
with bottomless.limit("16MiB", disk):
    until_heard(lambda: _ctypes.dlclose(_ctypes.dlopen("libm.so.6", os.RTLD_NOW)))
"""

MOVING = """
with bottomless.limit("10MiB", disk) as runtime:
    tensors = [torch.full((1 << 18,), float(n)) for n in range(16)]

    def work():
        for tensor in tensors:
            tensor.add_(1)

    until_heard(work)
    assert len({float(tensor[0]) - n for n, tensor in enumerate(tensors)}) == 1
    assert runtime.stats()["evictions"] > 0
"""


@pytest.mark.parametrize("work", [LOADING, SEARCHING, MOVING], ids=["loading", "searching", "moving"])
def test_handlers_that_write_interrupt_anything(work, disk):
    outcome = run_python(HEADER + work, disk, timeout=60)
    assert (outcome.code, outcome.out) == (0, "heard\n"), outcome.err[-2000:]

