"""torch.distributed with Gloo: every rank inside its own limit, the same losses as without, collectives in flight pinned."""

import pytest

from ranks import run_ranks

RANK = '''
import sys
import torch, torch.distributed as dist
from torch import nn
import bottomless
from helpers import check_moved, fingerprints, squeeze, training_state
from ranks import begin, end

task, memory, disk = sys.argv[1:]
rank, ranks = begin()
runtime = bottomless.limit(memory, disk) if memory else None


def layers(count, width=512):
    return nn.Sequential(*(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(count)))


def losses_of(model, optimizer, steps=3, width=512):
    data = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, width, generator=data)).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.item().hex()


def ddp(**options):
    model = nn.parallel.DistributedDataParallel(layers(6), **options)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = list(losses_of(model, optimizer))
    return {"losses": losses, "state": fingerprints(training_state(model, optimizer))}


def ddp_small_buckets():
    return ddp(bucket_cap_mb=1)


def ddp_gradients_as_views():
    return ddp(bucket_cap_mb=1, gradient_as_bucket_view=True)


def fsdp():
    from torch.distributed.fsdp import fully_shard

    model = layers(6)
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = list(losses_of(model, optimizer))
    return {"losses": losses, "state": fingerprints({n: p.full_tensor() for n, p in model.named_parameters()})}


def zero_redundancy():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(layers(6), bucket_cap_mb=1)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    losses = list(losses_of(model, optimizer))
    return {"losses": losses, "state": fingerprints(dict(model.named_parameters()))}


def collectives_in_flight():
    """Each is started, then memory is fought over, then it is waited for."""
    results = {}
    for turn in range(3):
        tensors = [torch.arange(1 << 18, dtype=torch.float32) * (rank + 1) + turn + n for n in range(3)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        squeeze(24)
        for work in works:
            work.wait()
        results |= {f"{turn}-all_reduce-{n}": tensor for n, tensor in enumerate(tensors)}

        gathered = [torch.empty(1 << 17) for _ in range(ranks)]
        work = dist.all_gather(gathered, torch.full((1 << 17,), float(rank + turn)), async_op=True)
        squeeze(24)
        work.wait()
        results |= {f"{turn}-gather-{n}": tensor for n, tensor in enumerate(gathered)}

        sent, received = torch.full((1 << 18,), float(10 * turn + rank)), torch.empty(1 << 18)
        works = [dist.isend(sent, 1 - rank), dist.irecv(received, 1 - rank)]
        squeeze(24)
        for work in works:
            work.wait()
        results[f"{turn}-received"] = received

        shared = torch.full((1 << 18,), float(rank))
        work = dist.broadcast(shared, 1, async_op=True)
        squeeze(24)
        work.wait()
        results[f"{turn}-broadcast"] = shared
    return {"state": fingerprints(results)}


def collectives_over_what_is_away():
    tensors = [torch.full((1 << 18,), float(rank + n)) for n in range(12)]
    squeeze(24)
    for tensor in tensors:
        dist.all_reduce(tensor)
    scattered = torch.empty(1 << 17)
    dist.reduce_scatter_tensor(scattered, tensors[3])
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank, "tensor": tensors[rank][:3]})
    dist.barrier()
    named = {n: tensor for n, tensor in enumerate(tensors)} | {"scattered": scattered}
    return {"state": fingerprints(named), "objects": str(objects)}


def functional_collectives():
    import torch.distributed._functional_collectives as functional

    results = {}
    group = dist.group.WORLD
    for turn in range(4):
        pending = functional.all_reduce(torch.full((1 << 18,), float(rank + turn)), "sum", group)
        gathered = functional.all_gather_tensor(torch.full((1 << 17,), float(rank)), 0, group)
        squeeze(24)
        results |= {f"{turn}-sum": pending + 1, f"{turn}-gathered": gathered * 2}
    return {"state": fingerprints(results)}


def functional_collectives_nobody_waits_for():
    """What they hold is given back when they are done: more of them run than there is memory for."""
    import torch.distributed._functional_collectives as functional

    results = {}
    for turn in range(24):
        pending = functional.all_reduce(torch.full((1 << 18,), float(rank + turn)), "sum", dist.group.WORLD)
        dist.barrier()
        if turn % 4 == 0:
            results[turn] = pending + 1
        elif turn % 4 == 1:
            results[turn] = pending.elem  # not waited for, and kept
    dist.barrier()
    squeeze(24)
    return {"state": fingerprints({turn: tensor + 0 for turn, tensor in results.items() if turn % 4 == 0})}


result = globals()[task]()
if runtime:
    check_moved(runtime.stats())
    assert runtime.stats()["peak_bytes"] <= runtime.stats()["limit_bytes"]
end(result)
'''


def check_same(task, memory, disk, env=None):
    plain = run_ranks(RANK, task, "", disk)
    limited = run_ranks(RANK, task, memory, disk, env=env)
    for rank, (ours, theirs) in enumerate(zip(limited, plain)):
        assert ours.get("losses") == theirs.get("losses"), f"rank {rank}"
        assert [name for name in theirs["state"] if ours["state"][name] != theirs["state"][name]] == [], f"rank {rank}"
        assert ours.keys() == theirs.keys() and ours.get("objects") == theirs.get("objects")


@pytest.mark.parametrize(
    "task, memory",
    [
        ("ddp", "20MiB"),  # the whole gradient is one bucket
        ("ddp_small_buckets", "14MiB"),
        ("ddp_gradients_as_views", "14MiB"),
        ("fsdp", "12MiB"),
        ("zero_redundancy", "14MiB"),
    ],
)
def test_training_on_two_ranks(task, memory, disk):
    check_same(task, memory, disk)


@pytest.mark.parametrize(
    "task",
    ["collectives_in_flight", "collectives_over_what_is_away", "functional_collectives", "functional_collectives_nobody_waits_for"],
)
def test_collectives(task, disk):
    check_same(task, "10MiB", disk)


@pytest.mark.parametrize("task", ["ddp_small_buckets", "collectives_in_flight", "functional_collectives"])
def test_when_every_block_leaves_at_once(task, disk):
    check_same(task, "16MiB", disk, env={"BOTTOMLESS_EVICT_EAGERLY": "1"})
