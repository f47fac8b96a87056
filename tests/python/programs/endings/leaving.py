"""Ways for a process to end, or to become another, while tensors live on in memory and on disk."""

import atexit
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import weakref

from pressure import Training, digest, numbered, reading_back, report, run_case

kept = []  # lives until the interpreter clears this module

# What a program finds that was started by one under a limit.
LOOK_AROUND = """
import os, resource
names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd") if int(name) > 2]
print("open files:", [os.readlink(name) for name in names if os.path.lexists(name)])
print("environment:", sorted(os.environ))
print("limits:", [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")])
with open("/proc/self/status") as status:
    inherited = ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd", "Threads", "Seccomp", "NoNewPrivs", "THP_enabled")
    print(*(line.strip() for line in status if line.split(":")[0] in inherited), sep="\\n")
"""


def trained():
    tensors, training = numbered(), Training().run()
    report()
    print(training.digest(), flush=True)
    kept.extend([tensors, training])
    return tensors, training


def falls_off_the_end():
    trained()


def sys_exit():
    trained()
    sys.exit(5)


def sys_exit_in_the_backward_pass():
    _, training = trained()
    training.amid_backward = lambda: sys.exit(6)
    training.backward()


def exception():
    trained()
    tensors = numbered(2)
    raise ValueError(len(tensors))  # the traceback keeps the frame, and the frame the tensors


def os_exit():
    trained()
    os._exit(9)


def abort():
    trained()
    os.abort()


def null_pointer():
    faulthandler.enable()
    trained()
    ctypes.string_at(0)


def null_pointer_in_a_thread():
    faulthandler.enable()
    trained()
    thread = threading.Thread(target=ctypes.string_at, args=(0,))
    thread.start()
    thread.join()


# --- other programs ---


def executes_another_program():
    trained()
    os.execv(sys.executable, [sys.executable, "-c", LOOK_AROUND])


def executes_another_program_during_training():
    """The other thread has transfers under way."""
    busy = threading.Event()

    def train():
        training = Training(1)
        while True:
            training.step()
            busy.set()

    threading.Thread(target=train, daemon=True).start()
    trained()
    busy.wait()
    os.execv(sys.executable, [sys.executable, "-c", LOOK_AROUND])


def starts_other_programs():
    command = [sys.executable, "-c", LOOK_AROUND]
    tensors, training = trained()
    subprocess.run(command, close_fds=False, check=True)
    training.step()
    os.waitpid(os.posix_spawn(sys.executable, command, os.environ), 0)
    training.step()
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, command)
    os.waitpid(child, 0)
    training.step()
    print(digest(tensors), training.digest())


def kills_a_child():
    """The child reads what was away when it was forked, until it is killed in the middle of that."""
    tensors, training = trained()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        while True:
            digest(tensors)
            os.write(writing, b"x")
    os.read(reading, 1)
    training.run()
    os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    training.run()
    print(digest(tensors), training.digest())


# --- tensors that are used after main ---


def atexit_reads_what_is_away():
    tensors = numbered()

    def read():
        with reading_back():
            print(digest(tensors))

    atexit.register(read)
    trained()


def atexit_trains():
    atexit.register(trained)
    numbered()


def finalizer_reads_what_is_away():
    tensors = numbered()
    kept.append(threading.Event())  # anything that lives as long as this module

    def read():
        with reading_back():
            print(digest(tensors))

    weakref.finalize(kept[0], read)
    trained()


class Owner:
    """Reads its tensors when it dies, by what is still there when most modules have been cleared."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __del__(self, write=os.write, standard_output=1):
        numbers = [(int(tensor[-1]), int(tensor.sum())) for tensor in self.tensors]
        write(standard_output, f"{numbers}\n".encode())


def deleted_at_shutdown():
    """One owner dies with the last cycles, one among the very last modules; one in this module, if that is ever cleared."""
    cycle = [Owner(numbered(4))]
    cycle.append(cycle)
    sys.last_of_all = Owner(numbered(5))
    kept.append(Owner(numbered(6)))
    trained()


if __name__ == "__main__":
    run_case(globals())
