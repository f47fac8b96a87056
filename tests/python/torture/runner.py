"""Runs programs in forked children, compares, and makes those that go wrong short.

The process that forks has imported everything and computed nothing: it has no threads that a child would miss.
"""

import dataclasses
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time

from .execution import COUNTED, advised, be_child
from .program import shortest

DEADLINE = 120  # seconds; a program takes a fraction of one
SHORT_DEADLINE = 20  # while a program is made shorter
ROUNDS = 12  # of raising the limit as an error advised


@dataclasses.dataclass
class Ended:
    """How one run ended; what it answered, unless it crashed or hung."""

    result: dict | None
    problems: list


def run_once(program, limited, deadline=DEADLINE):
    directory = tempfile.mkdtemp(prefix="torture-")
    folder, disk, answer = (os.path.join(directory, name) for name in ("files", "disk", "answer"))
    os.mkdir(folder)
    os.mkdir(disk)
    child = os.fork()
    if child == 0:  # may leave by an exception: nothing above may stand in a `with` or `finally`
        os.setsid()
        be_child(program, limited, folder, disk, answer, deadline)
    problems = []
    if not _ends(child, deadline):
        problems.append("it hangs\n" + _threads_of(child))
        time.sleep(0.5)  # until faulthandler has said where Python is
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    output = pathlib.Path(answer + ".output")
    said = output.read_text(errors="replace") if output.exists() else ""
    if problems:
        problems.append(said[-4000:])
    elif code != 0:
        problems.append(f"it ended with {code}\n{said[-4000:]}")
    try:
        result = json.loads(pathlib.Path(answer).read_text())
    except (OSError, ValueError):
        result = None
    shutil.rmtree(directory)
    return Ended(result, problems + (result["problems"] if result else []))


def _ends(child, deadline):
    descriptor = os.pidfd_open(child)
    try:
        return bool(select.select([descriptor], [], [], deadline)[0])
    finally:
        os.close(descriptor)


def _threads_of(process):
    """Where all threads are, of the process and its children, as well as can be found out here."""
    processes = [str(process)]
    children = pathlib.Path(f"/proc/{process}/task/{process}/children")
    if children.exists():
        processes += children.read_text().split()
    lines = []
    for number in processes:
        if shutil.which("gdb"):
            command = ["gdb", "-p", number, "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 14"]
            said = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120).stdout
            lines += [line for line in said.splitlines() if line.startswith(("#", "Thread"))]
            continue
        for task in pathlib.Path(f"/proc/{number}/task").iterdir():
            lines.append(" ".join((task / name).read_text().strip() for name in ("comm", "wchan", "syscall")))
    return "\n".join(lines)


@dataclasses.dataclass
class Verdict:
    """`wrong` is empty if all is well. `memory` is the limit that was enough."""

    wrong: list
    memory: int
    rounds: int = 0
    reproducible: bool = True
    why: str = ""  # it is not
    counters: dict = dataclasses.field(default_factory=dict)
    statements_failed: int = 0


def _differences(plain, limited):
    found = []
    for what in ("log", "state"):
        ours, theirs = limited[what], plain[what]
        for name in [*theirs, *(name for name in ours if name not in theirs)]:
            if ours.get(name) != theirs.get(name):
                found.append(
                    f"{what} {name}: plain {str(theirs.get(name))[:300]}, limited {str(ours.get(name))[:300]}"
                )
    return found


def judge(program, deadline=DEADLINE):
    plain = run_once(program, limited=False, deadline=deadline)
    if plain.result is None or plain.problems:
        return Verdict([], program.memory, reproducible=False, why=str(plain.problems))
    memory, rounds = program.memory, 0
    while True:
        limited = run_once(program.with_memory(memory), limited=True, deadline=deadline)
        lacked = limited.result and limited.result["memory_lacked"]
        if limited.problems or not lacked:
            break
        rounds += 1
        if rounds > ROUNDS:
            return Verdict([f"the advice was followed {ROUNDS} times in vain: {lacked}"], memory, rounds)
        memory = max(advised(lacked[1]), memory * 9 // 8)
    verdict = Verdict(limited.problems, memory, rounds, counters=limited.result["counters"] if limited.result else {})
    if limited.result is None or verdict.wrong:
        return verdict
    verdict.statements_failed = sum("Error" in str(said) for said in plain.result["log"].values())
    verdict.wrong = _differences(plain.result, limited.result)
    for _ in range(3 if verdict.wrong else 0):  # does torch give the same bits again?
        again = run_once(program, limited=False, deadline=deadline)
        differ = _differences(plain.result, again.result) if again.result else again.problems
        if differ:
            return Verdict([], memory, rounds, reproducible=False, why="\n".join(differ))
    return verdict


def shortened(program, seconds=300):
    """Leaves out statements as long as it still goes wrong."""
    began = time.monotonic()
    # What goes wrong only now and then is tried more often.
    attempts = 1 if all(judge(program, SHORT_DEADLINE).wrong for _ in range(3)) else 4

    def goes_wrong(statements):
        if time.monotonic() - began > seconds:
            return False
        return any(judge(program.with_statements(statements), SHORT_DEADLINE).wrong for _ in range(attempts))

    return program.with_statements(shortest(program.statements, goes_wrong))


def replay(program):
    verdict = judge(program)
    print(
        "\n".join(verdict.wrong) or ("the same" if verdict.reproducible else "plain PyTorch is not reproducible here")
    )
    print(verdict.counters)
    return 1 if verdict.wrong else 0


def add_up(total, counters):
    for name in COUNTED:
        total[name] = total.get(name, 0) + counters.get(name, 0)
