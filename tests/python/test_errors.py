"""When it cannot work: a clear exception that says what to do, and nothing lost."""

import contextlib
import errno
import io
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

import bottomless
from helpers import HANGS, MIB, limit, run_python, squeeze

COUNT = 1 << 18  # a tensor of 1 MiB


def numbered(count):
    return [torch.arange(n, n + COUNT, dtype=torch.int32) for n in range(count)]


def check_numbered(tensors):
    for n, tensor in enumerate(tensors):
        assert np.array_equal(tensor.numpy(), np.arange(n, n + COUNT, dtype=np.int32)), f"tensor {n}"


# --- an operator that needs more than the limit ---


def test_operator_that_does_not_fit(disk, eviction):
    """The error names the operator, what it needs and the limit; everything is still there, and work goes on."""
    with limit("10MiB", disk):
        tensors = numbered(16)
        left, right = torch.ones(1024, 1024), torch.ones(1024, 1024)  # 4 MiB each
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.mm(left, right)
        message = str(caught.value)
        assert re.search(r"bottomless: run aten::mm: it needs 12(\.\d+)? MiB", message), message
        assert "limit is 10 MiB (--memory)" in message
        check_numbered(tensors)
        assert float(torch.mm(left[:64], right).sum()) == 64 * 1024 * 1024
        assert float(left.sum()) == float(right.sum()) == 1024 * 1024


def test_allocation_that_does_not_fit(disk):
    with limit("10MiB", disk):
        tensors = numbered(12)
        with pytest.raises(torch.OutOfMemoryError, match=r"aten::randn: it needs 64(\.\d+)? MiB .* limit is 10 MiB"):
            torch.randn(16 << 20)
        check_numbered(tensors)


@pytest.mark.parametrize("side", [800, 1024, 1500])
def test_advice_is_good(side, disk):
    """Whoever raises the limit as told gets there: one operator after the other, its arguments first."""
    memory = 8 * MIB
    for _ in range(5):
        try:
            with bottomless.limit(memory, disk):
                left, right = torch.ones(side, side), torch.ones(side, side)
                assert bool((torch.mm(left, right) == side).all())
            return
        except torch.OutOfMemoryError as error:
            advice = re.search(r"raise it to at least ([\d.]+) MiB", str(error))
            memory = f"{advice[1]}MiB"
            left = right = None
    pytest.fail(f"{memory} bytes were not enough either")


@pytest.mark.parametrize("count", [100, 400, 1600])
def test_advice_about_small_tensors_is_not_for_one_more_of_them(count, disk):
    """They never leave memory. Whoever follows gets there in a few rounds, whatever their number."""
    memory, limits = "8MiB", ["8MiB"]
    for _ in range(8):
        try:
            with bottomless.limit(memory, disk):
                small = [torch.ones(16 << 10) for _ in range(count)]  # 64 KiB each
                assert len(small) == count
            break
        except torch.OutOfMemoryError as error:
            assert "those below 128 KiB never leave memory" in str(error)
            memory = re.search(r"raise it to at least ([\d.]+) MiB", str(error))[1] + "MiB"
            limits.append(memory)
        finally:
            small = None
    else:
        pytest.fail(f"none of {limits} was enough")
    assert float(memory.removesuffix("MiB")) <= 2 * max(8, count / 16)


def test_training_goes_on_with_a_smaller_batch(disk, eviction):
    with limit("12MiB", disk):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)))
        optimizer = torch.optim.AdamW(model.parameters())
        before = [parameter.detach().clone() for parameter in model.parameters()]

        def step(batch):
            optimizer.zero_grad()
            loss = model(torch.ones(batch, 512)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        with pytest.raises(torch.OutOfMemoryError, match="aten::"):
            step(3000)
        for parameter, kept in zip(model.parameters(), before):
            assert torch.equal(parameter, kept)
        losses = [step(16) for _ in range(5)]
        assert losses[-1] < losses[0]


def test_error_in_backward_reaches_the_caller(disk):
    """Backward runs on torch's own threads; what it cannot have arrives where backward() was called."""
    with limit("10MiB", disk):
        weights = torch.ones(1, 900_000, requires_grad=True)  # 3.4 MiB
        loss = weights.expand(3, -1)[:, ::2].sum()  # its gradient needs 3 x 3.4 MiB
        with pytest.raises(torch.OutOfMemoryError, match="bottomless: run aten::"):
            loss.backward()
        assert float(weights.detach().sum()) == 900_000
        tensors = numbered(12)
        check_numbered(tensors)


# --- arguments ---


@pytest.mark.parametrize("memory", ["4 apples", "", "GiB", "-4GiB", "4GiB 5", "1e", "0x10"])
def test_memory_that_is_no_size(memory, disk):
    with pytest.raises(ValueError, match=re.escape(f"'{memory}'")):
        bottomless.limit(memory, disk)


@pytest.mark.parametrize("memory", ["1KiB", "0", 0, "7.9MiB", 4096])
def test_memory_too_small_for_anything(memory, disk):
    with pytest.raises(ValueError, match=r"at least 8 MiB .*--memory"):
        bottomless.limit(memory, disk)


@pytest.mark.parametrize(
    "memory, error", [(-5, ValueError), (1 << 63, ValueError), (1 << 80, ValueError), (True, ValueError), (3.5, TypeError), (["4GiB"], TypeError)]
)
@pytest.mark.parametrize("name", ["memory", "disk_limit"])
def test_sizes_that_are_no_number_of_bytes(memory, error, name, disk):
    with pytest.raises(error, match=re.escape(f"bottomless: {name}={memory!r}: must be a number of bytes")):
        bottomless.limit(**{"memory": "16MiB", "disk": disk, name: memory})
    with bottomless.limit("8MiB", disk):
        pass  # the failed attempt left nothing behind


@pytest.mark.parametrize("name", ["memory", "disk_limit"])
def test_an_error_of_a_size_names_the_argument(name, disk):
    with pytest.raises(ValueError, match=f"^bottomless: {name}: read a size from '4 apples'"):
        bottomless.limit(**{"memory": "16MiB", "disk": disk, name: "4 apples"})


@pytest.mark.parametrize("memory", [-1, 3.5, None, ["4GiB"]])
def test_memory_of_a_wrong_type(memory, disk):
    with pytest.raises((TypeError, ValueError)):
        bottomless.limit(memory, disk)
    with bottomless.limit("8MiB", disk):
        pass  # the failed attempt left nothing behind


@pytest.mark.parametrize(
    "memory, bytes", [("16MiB", 16 * MIB), ("0.25GiB", 256 * MIB), ("20MB", 20_000_000), ("16777216", 16 * MIB), (9 * MIB, 9 * MIB)]
)
def test_sizes(memory, bytes, disk):
    with bottomless.limit(memory, disk) as runtime:
        assert runtime.stats()["limit_bytes"] == bytes


@pytest.mark.parametrize("place", ["missing", "file", "/proc/self"])
def test_directory_that_cannot_be_used(place, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    directory = tmp_path / place
    with pytest.raises((RuntimeError, ValueError), match=re.escape(f"'{directory}'")):
        bottomless.limit("16MiB", directory)
    assert (tmp_path / "file").read_text() == "not a directory"


def test_one_bad_directory_of_two(disk, tmp_path):
    with pytest.raises((RuntimeError, ValueError), match="missing"):
        bottomless.limit("16MiB", [disk, tmp_path / "missing"])
    with bottomless.limit("16MiB", [disk]):
        pass


def test_more_disks_than_memory_for_their_threads(tmp_path):
    directories = [tmp_path / str(i) for i in range(30)]
    for directory in directories:
        directory.mkdir()
    with pytest.raises(ValueError, match=r"threads of 30 disks .* fewer directories"):
        bottomless.limit("8MiB", directories)
    with bottomless.limit("8MiB", directories[:2]) as runtime:
        squeeze(16)
    assert runtime.stats()["evictions"] > 0


def test_no_directory():
    with pytest.raises(ValueError, match="--disk"):
        bottomless.limit("16MiB", [])


# --- a full disk ---


# In a process of its own: should it hang, only this test fails.
FULL_DISK = """if True:
    import io, sys, numpy, torch, bottomless
    from test_errors import COUNT, check_numbered, numbered
    directory, disk_limit, *named = sys.argv[1:]
    runtime = bottomless.limit("10MiB", directory, disk_limit or None)
    tensors = []
    try:
        for n in range(200):
            tensors.append(torch.arange(n, n + COUNT, dtype=torch.int32))
        sys.exit("the disk did not fill up")
    except RuntimeError as error:
        assert not isinstance(error, torch.OutOfMemoryError)
        assert all(name in str(error) for name in named), str(error)
    assert len(tensors) > 20
    print("full", flush=True)
    for n, tensor in enumerate(tensors):  # through numpy: a tensor to compare with would find the disk full again
        assert numpy.array_equal(tensor.numpy(), numpy.arange(n, n + COUNT, dtype=numpy.int32)), n
    print("readable", flush=True)
    saved = io.BytesIO()
    torch.save(tensors[-4:], saved)  # in memory still
    print("saved", flush=True)
    count = len(tensors)
    del tensors[count // 2 :]
    saved.seek(0)
    for n, tensor in enumerate(torch.load(saved), start=count - 4):
        assert torch.equal(tensor, torch.arange(n, n + COUNT, dtype=torch.int32))
    for _ in range(3):
        check_numbered(numbered(4))
    check_numbered(tensors)
    print("going on", flush=True)
"""


def check_full_disk(directory, disk_limit, *named):
    """The error says which disk; what is there stays readable and can be saved; after freeing some, work goes on."""
    outcome = run_python(FULL_DISK, directory, disk_limit, *named)
    assert (outcome.code, outcome.out.splitlines()) == (0, ["full", "readable", "saved", "going on"]), outcome.err


def test_disk_limit_exhausted(disk):
    check_full_disk(disk, "24MiB", f"'{disk}'", "--disk-limit", "24 MiB")


def test_optimizer_step_on_a_full_disk_loses_nothing(disk):
    with limit("10MiB", disk, disk_limit="20MiB"):
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(10)))
        before = [parameter.detach().double().sum().item() for parameter in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
        with pytest.raises(bottomless.DiskError, match="--disk-limit") as raised:
            for _ in range(3):
                model(torch.ones(4, 512)).square().mean().backward()
                optimizer.step()
        assert isinstance(raised.value, OSError) and raised.value.errno == errno.ENOSPC
        assert isinstance(raised.value, RuntimeError)
        optimizer.zero_grad()
        optimizer.state.clear()
        assert [parameter.detach().double().sum().item() for parameter in model.parameters()] == before


@contextlib.contextmanager
def tiny_disk(path, size):
    """Another file system, which can really be full."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def used(path):
    space = os.statvfs(path)
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def test_disk_that_is_really_full(tmp_path):
    with tiny_disk(tmp_path / "tiny", "32m") as directory:
        check_full_disk(directory, "", f"'{directory}'")
        assert os.listdir(directory) == []


def test_second_disk_serves_when_the_first_is_full(disk, tmp_path):
    with tiny_disk(tmp_path / "tiny", "16m") as directory, limit("10MiB", [directory, disk]):
        tensors = numbered(80)
        check_numbered(tensors)


# --- what is left behind ---

WORKER = """if True:
    import os, sys, time, torch, bottomless
    runtime = bottomless.limit("10MiB", sys.argv[1])
    tensors = [torch.full((1 << 18,), n) for n in range(20)]
    assert runtime.stats()["written_bytes"] > 0 and os.listdir(sys.argv[1]) == []
    print("ready", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_nothing_is_left_after_a_crash(how, tmp_path):
    with tiny_disk(tmp_path / "tiny", "64m") as directory:
        command = [sys.executable, "-c", WORKER, directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            assert os.listdir(directory) == []
            assert used(directory) > 8 * MIB
            process.send_signal(how)
            process.wait(HANGS)
        assert os.listdir(directory) == []
        deadline = time.monotonic() + HANGS
        while used(directory) > 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert used(directory) == 0


def test_disk_is_given_back_when_the_last_tensor_is_gone(tmp_path):
    with tiny_disk(tmp_path / "tiny", "64m") as directory:
        with limit("10MiB", directory):
            tensors = numbered(20)
        assert used(directory) > 8 * MIB
        del tensors
        with bottomless.limit("10MiB", tmp_path):  # ends what was closed and has nothing left
            assert used(directory) == 0


def test_exception_shows_no_trace_of_cpp(disk):
    code = "import sys, torch, bottomless; bottomless.limit('10MiB', sys.argv[1]); torch.randn(16 << 20)"
    outcome = run_python(code, disk)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("torch.OutOfMemoryError: bottomless: run aten::")
    assert "Exception raised from" not in outcome.err and ".cc:" not in outcome.err


# --- a disk that lies ---


def flip_bits(directory):
    """Changes what the scratch files of this process hold. They have no names, but descriptors."""
    for descriptor in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{descriptor}"
        if os.path.exists(path) and os.readlink(path).startswith(str(directory)):
            with open(path, "r+b") as file:
                for offset in range(0, os.fstat(file.fileno()).st_size, 4096):
                    file.seek(offset)
                    byte = file.read(1)
                    file.seek(offset)
                    file.write(bytes([byte[0] ^ 1]))


def test_a_flipped_bit_on_disk_is_found(disk, eviction):
    with limit("10MiB", disk, checksums=True):
        tensors = [torch.full((1 << 18,), n) for n in range(8)]
        squeeze()
        flip_bits(disk)
        for tensor in tensors[:4]:
            with pytest.raises(OSError, match="not what was written") as raised:
                tensor.sum()
            assert raised.value.errno == errno.EIO


def test_a_disks_error_comes_out_of_a_backward_pass_as_it_is(disk, eviction):
    """There operators run on threads of torch's own."""
    with limit("10MiB", disk, checksums=True):
        weights = [torch.full((1 << 18,), float(n), requires_grad=True) for n in range(8)]
        loss = sum((weight * weight).sum() for weight in weights)
        squeeze()
        flip_bits(disk)
        with pytest.raises(OSError, match="not what was written") as raised:
            loss.backward()
        assert raised.value.errno == errno.EIO


def test_checksums_change_nothing_else(disk, eviction):
    with limit("10MiB", disk, checksums=True):
        tensors = [torch.full((1 << 18,), n) for n in range(24)]
        for _ in range(3):
            for tensor in tensors:
                tensor.add_(1)
        assert [int(tensor[7]) for tensor in tensors] == [n + 3 for n in range(24)]
