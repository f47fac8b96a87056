"""What every test here stands on: one fixed math mode, a scratch directory, and both ways of evicting.

Plain PyTorch does not always give the same bits twice: MKL picks its kernels by the alignment of the operands and the
cores at hand. So all runs, plain ones too, use MKL's reproducible mode and two threads; what then differs is our doing.
"""

import os
import tempfile

os.environ["MKL_CBWR"] = "COMPATIBLE"  # before torch loads MKL; subprocesses inherit it
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin take five times as long on a busy machine
os.environ.pop("BOTTOMLESS_EVICT_EAGERLY", None)
# Speeds are measured once for all tests, and not for the user.
os.environ["XDG_CACHE_HOME"] = os.path.join(tempfile.gettempdir(), f"bottomless-tests-{os.getuid()}")

import gc
import hashlib
import signal
import subprocess

import pytest
import torch

import bottomless

pytest.register_assert_rewrite("helpers")
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False  # torch.empty shall not touch what it gives

for ignored in (signal.SIGINT, signal.SIGQUIT):  # as in a background job of a script
    if signal.getsignal(ignored) == signal.SIG_IGN:  # children would ignore it, too, and some are to be interrupted
        signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL)
try:
    os.fstat(0)
except OSError:  # closed: the next file that is opened would be taken for standard input
    os.open(os.devnull, os.O_RDONLY)

MANY, SHARE = 5, 6


def sample_seed():
    """Another sample for every commit, the same one on every worker; BOTTOMLESS_SEED=... repeats one."""
    if "BOTTOMLESS_SEED" in os.environ:
        return os.environ["BOTTOMLESS_SEED"]
    asked = subprocess.run(["git", "-C", os.path.dirname(__file__), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return asked.stdout.strip() or "0"


def pytest_report_header():
    return f"a sample of the cases: BOTTOMLESS_SEED={sample_seed()}"


def pytest_collection_modifyitems(config, items):
    """Of a test with many cases a sixth, so that all tests end in time; BOTTOMLESS_ALL_CASES=1 runs them all."""
    if os.environ.get("BOTTOMLESS_ALL_CASES") == "1" or any("[" in argument for argument in config.args):
        return
    seed, cases = sample_seed(), {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = set()
    for of_one in cases.values():
        if len(of_one) > MANY:
            shuffled = sorted(of_one, key=lambda item: hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest())
            left_out.update(shuffled[max(2, len(of_one) // SHARE) :])
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def disk(tmp_path):
    """An empty directory for what does not fit into memory; nothing may be visible there after the test."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    yield directory
    assert list(directory.iterdir()) == [], "the scratch directory must stay empty"


@pytest.fixture(params=["when_needed", "eagerly"])
def eviction(request, monkeypatch):
    """Runs the test twice: blocks leave when memory is short, and blocks leave (poisoned) as soon as nobody pins them."""
    if request.param == "eagerly":
        monkeypatch.setenv("BOTTOMLESS_EVICT_EAGERLY", "1")
    return request.param


@pytest.fixture(autouse=True)
def nothing_left_over():
    """Frees what a test made, so that the limits it set can go before the next one begins."""
    yield
    if bottomless._current is not None:  # a test failed: the next ones shall not fail with it
        bottomless._current.close()
    gc.collect()
    torch.set_num_threads(2)
