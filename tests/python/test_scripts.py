"""What scripts/ shows while it builds, and the sample of cases that pytest runs."""

import importlib.util
import io
import subprocess
import sys

import conftest
import pytest
from helpers import ROOT


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build_progress = load("build_progress")


class Clock:
    now = 0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_one_line_that_changes_with_the_time_left():
    clock, out = Clock(), Terminal()
    progress = build_progress.Progress("building x", out, clock)
    progress.update(0, 10)
    clock.now = 50
    progress.update(5, 10)
    clock.now = 100
    progress.update(10, 10)
    assert out.getvalue().split("\r")[1:] == ["building x: 0 of 10", "building x: 5 of 10, 50 s left", "building x: 10 of 10".ljust(30)]
    progress.close()
    assert out.getvalue().endswith("\r" + " " * 20 + "\r")


def test_others_see_a_line_every_half_a_minute():
    clock, out = Clock(), io.StringIO()
    progress = build_progress.Progress("building x", out, clock)
    for clock.now in range(0, 181, 5):
        progress.update(clock.now, 240)
    assert out.getvalue().splitlines()[:2] == ["    building x: 30 of 240, 3 min 30 s left", "    building x: 60 of 240, 3 min 0 s left"]
    assert len(out.getvalue().splitlines()) == 6


FAILED = """[1/9] Building CXX object a.o
FAILED: b.o
/usr/bin/c++ -c b.cc
In file included from b.cc:1:
b.h:2:1: warning: something else
b.cc:7:3: error: no such thing
    7 |   thing();
[2/9] Building CXX object c.o
FAILED: d.o
/usr/bin/c++ -c d.cc
d.cc:1:1: error: of less interest
ninja: build stopped: subcommand failed.
"""


def test_the_first_error_is_shown():
    assert build_progress.first_error(FAILED.splitlines()) == ["FAILED: b.o", "b.cc:7:3: error: no such thing", "    7 |   thing();"]


def test_what_marks_no_error_is_shown_as_it_is():
    said = ["FAILED: x", "sh -c y", "sh: y: not found", "ninja: build stopped"]
    assert build_progress.first_error(said) == ["FAILED: x", "sh: y: not found", "ninja: build stopped"]
    assert build_progress.first_error(["ninja: error: loading 'build.ninja'"]) == ["ninja: error: loading 'build.ninja'"]


def test_a_broken_build_fails_and_is_in_the_log(tmp_path):
    (tmp_path / "build.ninja").write_text("rule r\n command = echo 'x.cc:1:1: error: why' && false\nbuild out: r\n")
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts/build_progress.py", tmp_path, tmp_path / "log"], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "x.cc:1:1: error: why" in ended.stderr and "failed: ninja" in ended.stderr
    assert "x.cc:1:1: error: why" in (tmp_path / "log").read_text()


class Item:
    def __init__(self, nodeid):
        self.nodeid = nodeid


class Config:
    args = ["tests"]

    class hook:
        pytest_deselected = staticmethod(lambda items: None)


def sampled(monkeypatch, seed):
    monkeypatch.setenv("BOTTOMLESS_SEED", seed)
    monkeypatch.delenv("BOTTOMLESS_ALL_CASES", raising=False)
    items = [Item(f"t.py::many[{i}]") for i in range(60)] + [Item(f"t.py::few[{i}]") for i in range(5)] + [Item("t.py::one")]
    conftest.pytest_collection_modifyitems(Config, items)
    return [item.nodeid for item in items]


@pytest.mark.parametrize("seed", ["a", "b"])
def test_the_sample_is_a_sixth_of_many_and_all_of_few(monkeypatch, seed):
    names = sampled(monkeypatch, seed)
    assert names == sampled(monkeypatch, seed)
    assert sum("many" in name for name in names) == 10
    assert sum("few" in name for name in names) == 5 and names[-1] == "t.py::one"
    assert names != sampled(monkeypatch, seed + "c")
