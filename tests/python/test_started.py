"""Ranks as users start them: torchrun before `bottomless run`, `python -m bottomless` or a script that sets its own limit, with a
disk directory for each rank or one for all of them.
"""

import json
import pathlib
import sys

import pytest

from helpers import bottomless_run, check_moved, run
from ranks import free_port

SCRIPT = """
import json, os, pathlib, sys
import torch, torch.distributed as dist
import bottomless

if len(sys.argv) > 2:
    bottomless.limit("10MiB", sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters())
sharded = bottomless.shard(model, optimizer, stage=3, deadline=60)
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(3):
    loss = model(torch.randn(8, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
open_files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
result = {
    "losses": losses,
    "stats": bottomless._current.stats(),
    "disks": sorted({os.path.basename(os.path.dirname(file)) for file in open_files if "/disks/" in file}),
}
pathlib.Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(result))
sharded.close()
dist.destroy_process_group()
"""
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "MKL_CBWR": "COMPATIBLE"}


@pytest.fixture
def place(tmp_path):
    """A script, directories for two ranks or for all of them, and a place for what they find."""
    (tmp_path / "train.py").write_text(SCRIPT)
    for name in ("0", "1", "all"):
        (tmp_path / "disks" / name).mkdir(parents=True)
    yield tmp_path
    assert [list(directory.iterdir()) for directory in (tmp_path / "disks").iterdir()] == [[], [], []]


def torchrun(*words):
    starter = [sys.executable, "-m", "torch.distributed.run"]
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return run([*starter, *options, *words], env=ENVIRONMENT)


def results(outcome, place):
    assert outcome.code == 0, outcome.err
    found = [json.loads((place / f"{rank}.json").read_text()) for rank in range(2)]
    for rank in found:
        check_moved(rank["stats"])
    return found


def test_torchrun_and_a_limit(place):
    """Whichever way the limit comes, and whether ranks have directories of their own or not, the losses are the same."""
    script, disks = place / "train.py", place / "disks"
    binary = bottomless_run()
    words = ["--no-python", *binary] if pathlib.Path(binary[0]).name == "bottomless" else binary[1:]
    ways = [
        [*words, "--memory", "10MiB", "--disk", disks / "{rank}", script, place],
        ["-m", "bottomless", "--memory", "10MiB", "--disk", disks / "{local_rank}", "--", script, place],
        [script, place, disks / "all"],
    ]
    found = [results(torchrun(*way), place) for way in ways]
    assert [[rank["disks"] for rank in way] for way in found] == [[["0"], ["1"]], [["0"], ["1"]], [["all"], ["all"]]]
    for way in found:
        assert [rank["losses"] for rank in way] == [rank["losses"] for rank in found[0]]


# Knows nothing of bottomless.
PLAIN = """
import hashlib, json, pathlib, sys
import torch, torch.distributed as dist
from torch import nn

place, kind = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 512), nn.ReLU()) for _ in range(8)))
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
else:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.Generator().manual_seed(100 + rank)
losses = []
for _ in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 512, generator=data)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
whole = {name: p.full_tensor() if kind == "fsdp" else p for name, p in model.named_parameters()}
bits = {name: hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest() for name, tensor in whole.items()}
pathlib.Path(place, f"{rank}.json").write_text(json.dumps({"losses": losses, "bits": bits}))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind, memory", [("ddp", "20MiB"), ("fsdp", "14MiB")])
def test_programs_of_torch_run_unchanged(kind, memory, place):
    """The bits of the run without us, and every rank has kept to its limit."""
    words = [*bottomless_run(), "--memory", memory, "--disk", place / "disks" / "{rank}", "--json"]
    if pathlib.Path(words[0]).name != "bottomless":
        pytest.skip("the bottomless program is not installed beside this Python")
    script = place / "plain.py"
    script.write_text(PLAIN)
    found = []
    for way in ([script], ["--no-python", *words, script]):
        outcome = torchrun(*way, place, kind)
        assert outcome.code == 0, outcome.err
        found.append([json.loads((place / f"{rank}.json").read_text()) for rank in range(2)])
        for rank in range(2):
            (place / f"{rank}.json").unlink()
    assert found[0] == found[1]
    counters = [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")]
    assert len(counters) == 2, outcome.out
    for stats in counters:
        check_moved(stats)


def test_a_program_that_starts_ranks_cannot_be_under_the_limit(place):
    """It would be, and the ranks would not."""
    options = [*bottomless_run(), "--memory", "10MiB", "--disk", place / "disks" / "all"]
    if pathlib.Path(options[0]).name != "bottomless":
        pytest.skip("the bottomless program is not installed beside this Python")
    for starter in (["torchrun"], ["mpirun", "-n", "2"], [sys.executable, "-m", "torch.distributed.run"]):
        outcome = run([*options, *starter, place / "train.py", place])
        assert outcome.code == 2
        assert "put it first, as in torchrun --no-python ... bottomless run" in outcome.err, outcome.err


def test_a_rank_that_nobody_has_told(place):
    outcome = run([*bottomless_run(), "--memory", "10MiB", "--disk", place / "disks" / "{rank}", place / "train.py", place])
    assert outcome.code in (1, 2)
    assert "{rank}" in outcome.err and "the environment does not say which rank this is" in outcome.err, outcome.err
