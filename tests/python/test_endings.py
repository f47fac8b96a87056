"""How programs end, in every order of main, threads, signals, limits and tensors: as without a limit, leaving nothing.

Each case is a program that runs plainly and inside a limit, to the same exit code and output. It reports by itself what
had moved before its end.
"""

import json
import os
import pathlib
import re
import signal
import sys
import time

import pytest

from helpers import HANGS, check_moved, run, run_limited

PROGRAMS = pathlib.Path(__file__).parent / "programs/endings"
MEMORY = "12MiB"


def processes_with(variable):
    """The processes in whose environment this is."""
    found = []
    for directory in pathlib.Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                environment = (directory / "environ").read_bytes()
            except OSError:  # it has ended meanwhile, or is another user's
                continue
            if variable.encode() in environment.split(b"\0"):
                found.append(int(directory.name))
    return found


class Runner:
    """Runs a program, and checks that it left no process behind."""

    def __init__(self, directory):
        self.report = directory / "report"
        self.variable = f"ENDING_REPORT={self.report}"

    def __call__(self, start, *arguments):
        self.report.unlink(missing_ok=True)
        outcome = start(*arguments, env=dict([self.variable.split("=", 1)]))
        assert "ended by the test" not in outcome.err, outcome
        deadline = time.monotonic() + HANGS  # orphans notice the end of their parent in their own time
        while (left := processes_with(self.variable)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"processes {left} are left behind"
        return outcome

    def counters(self):
        return json.loads(self.report.read_text())


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)


def without_addresses(text):
    return re.sub(r"0x[0-9a-f]+", "0x...", text)


def run_both(case, disk, runner):
    """The outcome without and with a limit, which are alike and left nothing behind; the latter moved tensors."""
    script, *arguments = case.split()
    program = [PROGRAMS / script, *arguments]
    plain = runner(run, [sys.executable, *program])
    assert not runner.report.exists()
    limited = runner(run_limited, program, MEMORY, disk)
    assert (limited.code, limited.out) == (plain.code, plain.out), limited.err
    check_moved(runner.counters())
    return plain, limited


QUIET = {
    "leaving.py falls_off_the_end": 0,
    "leaving.py sys_exit": 5,
    "leaving.py sys_exit_in_the_backward_pass": 6,
    "leaving.py exception": 1,
    "leaving.py os_exit": 9,
    "leaving.py abort": -signal.SIGABRT,
    "leaving.py kills_a_child": 0,
    "leaving.py atexit_trains": 0,
    "leaving.py deleted_at_shutdown": 0,
    "signals.py default SIGTERM backward": -signal.SIGTERM,
    "signals.py default SIGTERM step": -signal.SIGTERM,
    "signals.py caught backward": 0,
    "signals.py caught step": 0,
    "signals.py handled SIGTERM": 0,
    "signals.py handled SIGINT": 0,
    "signals.py handler_exits SIGTERM": 40 + signal.SIGTERM,
    "signals.py handler_exits SIGINT": 40 + signal.SIGINT,
    "signals.py every_millisecond": 0,
    "threads.py daemon_in_one_long_operator": 0,
    "threads.py outlives_main": 0,
    "threads.py ends_before_its_tensors": 0,
    "threads.py four_at_once": 0,
    "threads.py of_numpy_and_a_pool": 0,
    "threads.py of_a_data_loader leave": 0,
    "threads.py of_a_data_loader exception": 1,
}


@pytest.mark.parametrize("case", QUIET)
def test_ends_as_without_a_limit(case, disk, runner):
    plain, limited = run_both(case, disk, runner)
    assert plain.code == QUIET[case], plain.err
    assert plain.out != ""
    assert without_addresses(limited.err) == without_addresses(plain.err)


@pytest.mark.parametrize("case", ["atexit_reads_what_is_away", "finalizer_reads_what_is_away"])
def test_what_is_away_is_read_after_main(case, disk, runner):
    plain, limited = run_both(f"leaving.py {case}", disk, runner)
    assert (plain.code, len(plain.out.split()), limited.err) == (0, 2, "")
    assert runner.counters()["read_at_the_end"] >= 8 << 20  # of 16 MiB


@pytest.mark.parametrize("phase", ["backward", "step"])
def test_interrupt_that_nobody_catches(phase, disk, runner):
    _, limited = run_both(f"signals.py default SIGINT {phase}", disk, runner)
    assert limited.code == -signal.SIGINT
    assert limited.err.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize("case", ["null_pointer", "null_pointer_in_a_thread"])
def test_segmentation_fault_is_reported_by_faulthandler(case, disk, runner):
    for outcome in run_both(f"leaving.py {case}", disk, runner):
        assert outcome.code == -signal.SIGSEGV
        assert outcome.err.startswith("Fatal Python error: Segmentation fault")
        assert "ctypes" in outcome.err and "in string_at" in outcome.err
        assert f"in {case}" in outcome.err


def test_daemon_thread_amid_many_operators(disk, runner):
    """Before Python 3.14 a daemon thread that asks for the interpreter at its end is ended inside torch, which aborts."""
    program = [PROGRAMS / "threads.py", "daemon_amid_many_operators"]
    for start, *arguments in [(run, [sys.executable, *program]), (run_limited, program, MEMORY, disk)]:
        outcome = runner(start, *arguments)
        assert outcome.out == "main is done\n"
        assert (outcome.code, outcome.err) in [
            (0, ""),
            (-signal.SIGABRT, "terminate called without an active exception\n"),
        ]
    check_moved(runner.counters())


@pytest.mark.parametrize("case", ["executes_another_program", "executes_another_program_during_training", "starts_other_programs"])
def test_other_programs_find_nothing_of_the_limit(case, disk, runner):
    """No file of the scratch directory, no variable, no blocked signal: all that they see is as without a limit."""
    plain, limited = run_both(f"leaving.py {case}", disk, runner)
    assert (plain.code, limited.err) == (0, "")
    looks = 3 if case == "starts_other_programs" else 1
    assert plain.out.count("open files: []\n") == plain.out.count("SigBlk:\t0000000000000000\n") == looks, plain.out


@pytest.mark.parametrize(
    "case, code",
    [
        ("tensors_outlive_it", 0),
        ("a_larger_one_follows", 0),
        ("left_by_an_exit", 4),
        ("never_left", 0),
        ("one_after_the_other first", 0),
        ("one_after_the_other second", 0),
        ("one_in_another", 0),
        ("ended_by_another_thread", 0),
        ("ended_under_busy_threads", 0),
        ("again_and_again", 0),
    ],
)
def test_limits_that_end_before_their_tensors(case, code, disk, runner):
    name, *order = case.split()
    plain, limited = (
        runner(run, [sys.executable, PROGRAMS / "limits.py", name, where, *order]) for where in ["-", disk]
    )
    assert (plain.code, plain.err) == (code, "")
    assert limited == plain
    check_moved(runner.counters())
