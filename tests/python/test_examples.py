"""Every example prints the same lines, digest of all parameters and states included, plainly and inside a limit."""

import functools
import sys

import pytest

from helpers import MIB, ROOT, check_moved, run, run_limited

STEPS = "--steps 2"
TINY = {  # sizes at which every block may go to disk and back around every operator
    "mlp": "--layers 2 --width 16",
    "cnn": "--layers 1 --width 4 --batch 4",
    "lstm": "--layers 2 --width 16",
    "gpt": "--layers 2 --width 16 --heads 2",
    "moe": "--layers 2 --width 16",
    "graph": "--layers 2 --width 16 --nodes 64 --edges 256",
    "hf_trainer": "--layers 2 --width 16 --heads 2",
}


def program(name, options):
    return [ROOT / "examples" / "python" / f"{name}.py", *options.split()]


@functools.cache
def plain(name, options):
    """What the example prints by itself."""
    outcome = run([sys.executable, *program(name, options)])
    assert outcome.code == 0, outcome.err
    return outcome.out.splitlines()


def limited(name, options, memory, disk, **how):
    """Runs the example inside a limit, compares what it prints, and returns the stats."""
    outcome = run_limited(program(name, options), memory, disk, "--json", **how)
    assert outcome.code == 0, outcome.err
    assert outcome.lines == plain(name, options)
    assert outcome.stats["limit_bytes"] == memory
    assert outcome.stats["peak_bytes"] <= memory
    return outcome.stats


@functools.cache
def need(name, disk):
    """The most that the example holds at once when nothing presses."""
    stats = limited(name, STEPS, 2048 * MIB, disk)
    assert stats["evictions"] == 0
    return stats["peak_bytes"]


@pytest.fixture(scope="session")
def shared_disk(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch")


@pytest.mark.parametrize("share", [3, 8], ids=["third", "eighth"])
@pytest.mark.parametrize("name", TINY)
def test_same_lines_inside_a_share_of_the_need(name, share, shared_disk):
    memory = need(name, shared_disk) // share
    stats = limited(name, STEPS, memory, shared_disk)
    assert stats["steps"] == 2
    check_moved(stats)


@pytest.mark.parametrize("name", TINY)
def test_same_lines_when_every_block_leaves_at_once(name, shared_disk):
    options = f"{TINY[name]} {STEPS}"
    stats = limited(name, options, 64 * MIB, shared_disk, env={"BOTTOMLESS_EVICT_EAGERLY": "1"})
    check_moved(stats)
