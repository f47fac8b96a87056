"""What touches tensors without an operator: numpy, raw pointers, system calls, threads of others, forked children."""

import ctypes
import os
import signal
import socket
import sys
import threading

import numpy as np
import pytest
import torch

import bottomless
from helpers import limit, run_python, squeeze

COUNT = 1 << 18  # a tensor of 1 MiB
MEMORY = "10MiB"


def numbered(count=8):
    """Tensors that tell where they are: element i of tensor n is n * COUNT + i."""
    return [torch.arange(n * COUNT, (n + 1) * COUNT, dtype=torch.int32) for n in range(count)]


def is_numbered(tensor, n):
    return bool(np.array_equal(tensor.numpy(), np.arange(n * COUNT, (n + 1) * COUNT, dtype=np.int32)))


# --- memory accesses ---


def test_numpy_reads_what_is_away(disk, eviction):
    with limit(MEMORY, disk) as runtime:
        tensors = numbered()
        squeeze()
        assert all(is_numbered(tensor, n) for n, tensor in enumerate(tensors))
        assert runtime.stats()["faults"] > 0


def test_numpy_writes_into_a_clean_block_survive(disk, eviction):
    with limit(MEMORY, disk) as runtime:
        tensors = numbered()
        for turn in range(1, 4):
            squeeze()
            assert [int(tensor.sum(dtype=torch.int64)) for tensor in tensors]  # back in memory, and clean
            for tensor in tensors:
                tensor.numpy()[turn::1000] = -turn
            squeeze()
            for n, tensor in enumerate(tensors):
                expected = np.arange(n * COUNT, (n + 1) * COUNT, dtype=np.int32)
                for past in range(1, turn + 1):
                    expected[past::1000] = -past
                assert np.array_equal(tensor.numpy(), expected), f"turn {turn}, tensor {n}"
        assert runtime.stats()["faults"] > 0


def test_pointers_stay_valid(disk, eviction):
    with limit(MEMORY, disk):
        tensors = numbered()
        addresses = [tensor.data_ptr() for tensor in tensors]
        squeeze()
        assert [tensor.data_ptr() for tensor in tensors] == addresses
        for n, address in enumerate(addresses):
            values = (ctypes.c_int32 * COUNT).from_address(address)
            assert (values[0], values[COUNT - 1]) == (n * COUNT, (n + 1) * COUNT - 1)
            ctypes.memmove(address + 4, address + 8, 400)  # reads and writes
            ctypes.memset(address, 0xFF, 4)
        squeeze()
        for n, tensor in enumerate(tensors):
            assert tensor[:2].tolist() == [-1, n * COUNT + 2]


def test_other_views_of_the_memory(disk, eviction):
    with limit(MEMORY, disk):
        tensors = numbered()
        arrays = [tensor.numpy() for tensor in tensors]
        squeeze()
        assert bytes(memoryview(arrays[1])[:2]) == np.array([COUNT, COUNT + 1], np.int32).tobytes()
        assert np.from_dlpack(tensors[2])[5] == 2 * COUNT + 5
        assert torch.from_dlpack(tensors[3])[7] == 3 * COUNT + 7
        assert torch.from_numpy(arrays[4])[9] == 4 * COUNT + 9
        np.add(arrays[5], 1, out=arrays[5])
        squeeze()
        assert tensors[5][0] == 5 * COUNT + 1
        assert "393216" in repr(tensors[1][1 << 17])
        assert tensors[6].tolist()[3] == 6 * COUNT + 3


# --- system calls: the kernel does not fault on memory that is away, it says EFAULT ---


def by_file_object(path, array):
    with open(path, "wb", buffering=0) as file:
        view = memoryview(array).cast("B")
        assert file.write(view) == len(view)


def by_numpy(path, array):
    array.tofile(path)


def by_descriptor(path, array):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    assert os.write(descriptor, array) == array.nbytes
    os.close(descriptor)


@pytest.mark.parametrize("write", [by_file_object, by_numpy, by_descriptor])
def test_files_are_written_from_what_is_away(write, disk, tmp_path, eviction):
    with limit(MEMORY, disk):
        tensors = numbered()
        squeeze()
        for n, tensor in enumerate(tensors):
            write(tmp_path / str(n), tensor.numpy())
    for n in range(len(tensors)):
        assert is_numbered(torch.from_numpy(np.fromfile(tmp_path / str(n), np.int32)), n)


def test_files_are_read_into_what_is_away(disk, tmp_path, eviction):
    np.arange(COUNT, dtype=np.int32).tofile(tmp_path / "file")
    with limit(MEMORY, disk):
        tensors = numbered()
        squeeze()
        for tensor in tensors:
            with open(tmp_path / "file", "rb", buffering=0) as file:
                assert file.readinto(memoryview(tensor.numpy()).cast("B")) == 4 * COUNT
        squeeze()
        assert all(is_numbered(tensor, 0) for tensor in tensors)


def test_files_are_read_into_new_memory(disk, tmp_path):
    np.arange(COUNT, dtype=np.int32).tofile(tmp_path / "file")
    with limit(MEMORY, disk):
        tensors = [torch.from_file(str(tmp_path / "file"), shared=False, size=COUNT, dtype=torch.int32)]
        for _ in range(12):
            tensors.append(torch.empty(COUNT, dtype=torch.int32))
            with open(tmp_path / "file", "rb", buffering=0) as file:
                assert file.readinto(memoryview(tensors[-1].numpy()).cast("B")) == 4 * COUNT
        assert all(is_numbered(tensor, 0) for tensor in tensors)


def test_sockets_send_what_is_away(disk, eviction):
    with limit(MEMORY, disk):
        tensors = numbered()
        squeeze()
        here, there = socket.socketpair()
        received = bytearray()

        def receive():
            while piece := there.recv(1 << 16):
                received.extend(piece)

        reader = threading.Thread(target=receive)
        reader.start()
        here.sendall(memoryview(tensors[3].numpy()).cast("B"))
        here.close()
        reader.join(30)
        there.close()
    assert is_numbered(torch.frombuffer(received, dtype=torch.int32), 3)


# --- threads ---


def test_thread_that_never_met_the_library(disk, eviction):
    """It began before the limit and first touches tensors of others: by operators in place, and through numpy."""
    work, done, results = threading.Event(), threading.Event(), []
    tensors = []

    def others():
        work.wait(60)
        for tensor in tensors:
            tensor.add_(1)
            tensor.numpy()[0] = -7
            results.append(int(tensor.sum(dtype=torch.int64)))
        done.set()

    thread = threading.Thread(target=others)
    thread.start()
    with limit(MEMORY, disk):
        tensors += numbered()
        squeeze()
        work.set()
        assert done.wait(60)
        thread.join()
        squeeze()
        for n, tensor in enumerate(tensors):
            expected = np.arange(n * COUNT + 1, (n + 1) * COUNT + 1, dtype=np.int64)
            expected[0] = -7
            assert np.array_equal(tensor.numpy(), expected)
            assert results[n] == expected.sum()


CONCURRENT = """
import faulthandler, sys, threading
faulthandler.dump_traceback_later(100, exit=True)
import torch, bottomless
from torch import nn
from helpers import fingerprints, training_state, check_moved
memory, disk, threads, steps, width = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(1)

def train(index, results):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(5)))
    generator = torch.Generator().manual_seed(index)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.05, 0.05, generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=index % 2 == 0, fused=index % 2 == 1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, width, generator=generator)).square().mean().backward()
        model[0].weight.grad.numpy()[0, 0] += 1
        optimizer.step()
    results[index] = fingerprints(training_state(model, optimizer))

plain, limited = {}, {}
for index in range(threads):
    train(index, plain)
with bottomless.limit(memory, disk) as runtime:
    running = [threading.Thread(target=train, args=(index, limited)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert limited == plain
    check_moved(runtime.stats())
print("same")
"""


@pytest.mark.parametrize("mode", ["0", "1"], ids=["when_needed", "eagerly"])
@pytest.mark.parametrize("memory, threads, steps, width", [("24MiB", 4, 6, 512), ("12MiB", 2, 6, 512), ("9MiB", 6, 10, 192)])
def test_threads_share_a_tight_limit(memory, threads, steps, width, mode, disk):
    environment = {"BOTTOMLESS_EVICT_EAGERLY": mode}
    outcome = run_python(CONCURRENT, memory, disk, threads, steps, width, env=environment)
    assert (outcome.code, outcome.out) == (0, "same\n"), outcome.err


# --- faults that are none of ours, and handlers of others ---


def test_a_real_segmentation_fault_still_ends_the_process(disk):
    code = "import sys, ctypes, bottomless; bottomless.limit('16MiB', sys.argv[1]); ctypes.string_at(8)"
    outcome = run_python(code, disk, env={"PYTHONFAULTHANDLER": "1"})
    assert outcome.code == -11
    assert "Segmentation fault" in outcome.err and "string_at" in outcome.err  # Python's own report, by faulthandler


def test_faulthandler_may_be_enabled_later(disk):
    code = """if True:
        import sys, faulthandler, torch, bottomless
        from helpers import squeeze
        bottomless.limit("10MiB", sys.argv[1])
        faulthandler.enable()
        tensors = [torch.full((1 << 18,), n) for n in range(8)]
        squeeze()
        print([int(tensor.numpy().sum()) >> 18 for tensor in tensors])
    """
    outcome = run_python(code, disk)
    assert (outcome.code, outcome.out, outcome.err) == (0, "[0, 1, 2, 3, 4, 5, 6, 7]\n", "")


def test_handler_of_the_program_hears_only_of_its_own_faults(disk):
    """A signal that others send is passed on to whoever handled it before."""
    code = """if True:
        import os, signal, sys, bottomless
        signal.signal(signal.SIGSEGV, lambda *_: print("handled", flush=True))
        bottomless.limit("10MiB", sys.argv[1])
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    outcome = run_python(code, disk)
    assert (outcome.code, outcome.out) == (0, "handled\n"), outcome.err


# --- faults that wait for each other ---

INSIDE = """
import ctypes, sys, threading
import torch, bottomless
from helpers import squeeze

runtime = bottomless.limit("10MiB", sys.argv[1])
held = [torch.full((1 << 15,), float(n)) for n in range(80)]
away = torch.ones(1 << 18)
squeeze()
others = []


def work(held):
    pass


@torch.library.custom_op("inside::greedy", mutates_args=())
def greedy(held: list[torch.Tensor]) -> torch.Tensor:
    work(held)
    return torch.zeros(1)


def most():
    # as can be held at once: then there is no room for a block
    for count in range(40, 80):
        try:
            greedy(held[: count + 1])
        except RuntimeError:
            return held[:count]


held = most()
"""

WAITED_FOR = """
seen = ctypes.c_float()


def work(held):
    faults = runtime.stats()["faults"]
    # ctypes lets go of the GIL
    others.append(threading.Thread(target=ctypes.memmove, args=(ctypes.addressof(seen), away.data_ptr() + 28, 4)))
    others[0].start()
    while runtime.stats()["faults"] == faults:  # until the other's is being served, and waits for what is held
        pass
    held[0].numpy()[3] = 5  # clean: a fault that needs no room


greedy(held)
others[0].join()
print(seen.value, held[0][3].item())
"""

NO_PROGRESS = """
def work(held):
    print(away.numpy()[7])


greedy(held)
"""


def test_fault_inside_an_operator_that_another_fault_waits_for(disk):
    outcome = run_python(INSIDE + WAITED_FOR, disk, timeout=30)
    assert (outcome.code, outcome.out) == (0, "1.0 5.0\n"), outcome.err[-2000:]


def test_fault_inside_an_operator_that_holds_all_memory_is_an_error(disk):
    outcome = run_python(INSIDE + NO_PROGRESS, disk, timeout=30)
    assert outcome.code == -signal.SIGSEGV, outcome
    assert "serve a memory access inside inside::greedy" in outcome.err and "(--memory)" in outcome.err
