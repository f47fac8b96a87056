"""A short run of the random programs, other ones for every commit; CONTRIBUTING.md says how to have a long one."""

import json
import pathlib
import sys

from conftest import sample_seed
from helpers import run

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
