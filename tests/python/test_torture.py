"""A short run of the random programs, other ones for every commit; CONTRIBUTING.md says how to have a long one."""

import json
import pathlib
import sys

from conftest import sample_seed
from helpers import run, run_python

HERE = pathlib.Path(__file__).parent
PROGRAMS = 60


def torture(*options, keep):
    outcome = run([sys.executable, "-m", "torture", *options, "--keep", keep], cwd=HERE)
    return outcome, json.loads(outcome.out.splitlines()[-1])


def test_random_programs_leave_the_same_behind(tmp_path):
    outcome, total = torture("--programs", str(PROGRAMS), "--seed", sample_seed(), keep=tmp_path)
    assert outcome.code == 0, outcome.out + outcome.err
    assert total["programs"] == PROGRAMS and total["wrong"] == 0
    assert total["not_reproducible"] <= PROGRAMS // 10, outcome.out
    # That they were programs, and that the limits mattered.
    assert total["failed_statements"] < total["statements"] / 3
    for counter in ("evictions", "faults", "demand_fetches", "steps"):
        assert total[counter] > 0, total
    assert total["written_bytes"] > 1 << 20 and total["read_bytes"] > 1 << 20


FOUND = """if True:
    from torture.program import Block, Program
    from torture.runner import judge, shortened

    def program(*statements):
        return Program(8 << 20, 1, True, 1, {}, False, ("t[0] = counted((99999,))", *statements, "t[1] = t[0] + 1"))

    limited = "mark_step.__self__.limited"  # what no program may know
    differs = program(Block("threads", (("t[2] = t[0] * 2",), (f"t[3] = t[0] * {limited}",))))
    assert judge(program()).wrong == [] and "t[3]" in judge(differs).wrong[0]
    assert shortened(differs).statements == ("t[0] = counted((99999,))", f"t[3] = t[0] * {limited}")
    assert "ended with -11" in judge(program(f"ctypes.string_at(8) if {limited} else 0")).wrong[0]
    assert "it hangs" in judge(program(f"[0 for x in iter(lambda: {limited}, False)]"), deadline=3).wrong[0]
    print("found")
"""


def test_what_goes_wrong_is_found():
    outcome = run_python(FOUND)
    assert (outcome.code, outcome.out) == (0, "found\n"), outcome.err
