"""Processes that are forked, or get tensors from others: children read what was away, and the parent goes on."""

import os
import sys

import pytest

from helpers import ROOT, run, run_python

LOADING = """if True:
    import faulthandler, sys; faulthandler.dump_traceback_later(80, exit=True)
    import torch, bottomless
    from torch.utils.data import DataLoader, Dataset
    from helpers import squeeze, check_moved

    class Rows(Dataset):
        def __init__(self, managed):
            self.rows = torch.arange(64 * 65_536).view(64, -1) if managed else None
        def __len__(self):
            return 64
        def __getitem__(self, index):
            if self.rows is not None:
                return self.rows[index, :100] * 2
            return torch.arange(index * 65_536, index * 65_536 + 100) * 2

    runtime = bottomless.limit("10MiB", sys.argv[1])
    rows = Rows(managed=False)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(10)))
    if sys.argv[2] == "managed":
        rows.rows = torch.empty(64, 65_536, dtype=torch.int64)
        for index in range(64):
            rows.rows[index] = torch.arange(index * 65_536, (index + 1) * 65_536)
    optimizer = torch.optim.Adam(model.parameters())
    seen = []
    for epoch in range(2):
        for batch in DataLoader(rows, batch_size=8, num_workers=2, multiprocessing_context="fork"):
            seen += (batch[:, 0] // (2 * 65_536)).tolist()
            optimizer.zero_grad()
            model(batch[:, :1].float().expand(8, 512) / 1e7).square().mean().backward()
            optimizer.step()
            squeeze(4)
    assert seen == 2 * list(range(64)), seen
    check_moved(runtime.stats())
    assert runtime.stats()["steps"] == 16
    print("done")
"""


@pytest.mark.parametrize("mode", ["0", "1"], ids=["when_needed", "eagerly"])
@pytest.mark.parametrize("data", ["made_by_the_child", "managed"])
def test_data_loader_with_forked_workers(data, mode, disk):
    """The parent goes on, and the children see the dataset's tensors, also where they are away."""
    outcome = run_python(LOADING, disk, data, env={"BOTTOMLESS_EVICT_EAGERLY": mode})
    assert (outcome.code, outcome.out) == (0, "done\n"), outcome.err


def test_forked_child_leaves_the_parents_memory_alone(disk):
    code = """if True:
        import os, sys, torch, bottomless
        from helpers import squeeze, check_moved
        runtime = bottomless.limit("10MiB", sys.argv[1])
        tensors = [torch.full((1 << 18,), n) for n in range(8)]
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # OpenMP's threads do not live on in a child
            tensors[-1].fill_(99)
            tensors.clear()
            torch.ones(1 << 20).sum()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        squeeze()
        assert [int(tensor[5]) for tensor in tensors] == list(range(8))
        check_moved(runtime.stats())
    """
    outcome = run_python(code, disk)
    assert (outcome.code, outcome.err) == (0, ""), outcome


@pytest.mark.parametrize("mode", ["0", "1"], ids=["when_needed", "eagerly"])
def test_forked_child_sees_memory_as_it_was(mode, disk, tmp_path):
    """It reads what was on disk when it was forked, by operators, numpy and system calls, while the parent writes on."""
    code = """if True:
        import os, sys, torch, numpy, bottomless
        from helpers import squeeze, check_moved
        COUNT = 1 << 18
        numbered = lambda n: numpy.arange(n * COUNT, (n + 1) * COUNT, dtype=numpy.int32)
        runtime = bottomless.limit("10MiB", sys.argv[1])
        tensors = [torch.from_numpy(numbered(n)).clone() for n in range(24)]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # OpenMP's threads do not live on in a child
            os.read(reading, 1)
            tensors[1].numpy().tofile(sys.argv[2])
            assert all(numpy.array_equal(tensor.numpy(), numbered(n)) for n, tensor in enumerate(tensors))
            assert [int((tensor + 1)[0]) for tensor in tensors] == [n * COUNT + 1 for n in range(24)]
            tensors[2].numpy()[:] = 5
            tensors[3].add_(7)
            assert (int(tensors[2][9]), int(tensors[3][9])) == (5, 3 * COUNT + 16)
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if int(tensors[3][9]) == 3 * COUNT + 16 and int(tensors[20][0]) == 20 * COUNT else 1)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
        for _ in range(3):
            for tensor in tensors:
                tensor.add_(1)
        del tensors[-4:]
        squeeze(24)
        os.write(writing, b"x")
        assert os.waitpid(child, 0)[1] == 0
        assert all(numpy.array_equal(tensor.numpy(), numbered(n) + 3) for n, tensor in enumerate(tensors))
        assert numpy.array_equal(numpy.fromfile(sys.argv[2], numpy.int32), numbered(1))
        check_moved(runtime.stats())
    """
    outcome = run_python(code, disk, tmp_path / "file", env={"BOTTOMLESS_EVICT_EAGERLY": mode})
    assert (outcome.code, outcome.err) == (0, ""), outcome


def test_forked_child_cannot_have_a_limit_of_its_own(disk):
    code = """if True:
        import os, sys, bottomless
        bottomless.limit("10MiB", sys.argv[1])
        child = os.fork()
        if child == 0:
            bottomless.limit("10MiB", sys.argv[1])
        os.waitpid(child, 0)
    """
    outcome = run_python(code, disk)
    assert "start it with spawn" in outcome.err, outcome


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_share_tensors(method, disk, tmp_path):
    """Tensors go to a process and come back through shared memory."""
    program = tmp_path / "program.py"
    program.write_text("""if True:
        import sys, torch, torch.multiprocessing as multiprocessing, bottomless

        def double(received, sent):
            torch.set_num_threads(1)
            while (tensor := received.get()) is not None:
                sent.put(tensor * 2)
            received.get()

        if __name__ == "__main__":
            from helpers import squeeze, check_moved
            runtime = bottomless.limit("10MiB", sys.argv[1])
            context = multiprocessing.get_context(sys.argv[2])
            to, back = context.Queue(), context.Queue()
            process = context.Process(target=double, args=(to, back))
            process.start()
            tensors = [torch.full((1 << 18,), n) for n in range(12)]
            squeeze()
            for n, tensor in enumerate(tensors):
                to.put(tensor)
                assert torch.equal(back.get(), torch.full((1 << 18,), 2 * n))
            to.put(None)
            to.put("and out")
            process.join()
            check_moved(runtime.stats())
            print("done")
    """)
    paths = os.pathsep.join(filter(None, [str(ROOT / "tests/python"), os.environ.get("PYTHONPATH")]))
    outcome = run([sys.executable, program, disk, method], env={"PYTHONPATH": paths})
    assert (outcome.code, outcome.out) == (0, "done\n"), outcome.err
