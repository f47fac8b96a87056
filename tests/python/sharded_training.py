"""A training under bottomless.shard, and the same under others, as a program of several ranks: cases in, results out."""

import json

from ranks import run_ranks

PROGRAM = '''
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
import bottomless
from helpers import fingerprints
from ranks import begin, end

cases, disk = json.loads(sys.argv[1]), sys.argv[2]
rank, ranks = begin()
WIDTH = 512


def layers(count=8):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(count)))


def batches(steps, rank=rank):
    data = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(8, WIDTH, generator=data) for _ in range(steps)]


def train(model, optimizer, steps, meet=False):
    for batch in batches(steps):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if meet:  # nobody is ahead
            dist.barrier()
        loss.backward()
        optimizer.step()
        yield loss.item()


def sharded(stage, memory, steps, count=8, disk_limit=None, env={}, meet=False, **options):
    os.environ.update(env)
    try:
        with bottomless.limit(memory, disk, disk_limit=disk_limit) as runtime:
            model = layers(count)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            sharded = bottomless.shard(model, optimizer, stage=stage, deadline=600, **options)
            losses, traffic = [], []
            for loss in train(model, optimizer, steps, meet):
                losses.append(loss)
                traffic.append(sharded.stats())
            stats = runtime.stats()
            state = fingerprints(model.state_dict())
            sharded.close()
            return {"losses": losses, "state": state, "traffic": traffic, "stats": stats}
    finally:
        for name in env:
            del os.environ[name]


def ddp(steps, count):
    model = nn.parallel.DistributedDataParallel(layers(count))
    return {"losses": list(train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), steps))}


def fsdp(steps, count):
    from torch.distributed.fsdp import fully_shard

    model = layers(count)
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return {"losses": list(train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), steps))}


def alone(steps, count):
    model = layers(count)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for together in zip(*(batches(steps, each) for each in range(ranks))):
        optimizer.zero_grad()
        parts = [model(batch).square().mean() for batch in together]
        (sum(parts) / ranks).backward()
        optimizer.step()
        losses.append(parts[rank].item())
    return {"losses": losses}


end([globals()[case.pop("what")](**case) for case in cases])
'''
TIGHT = "12MiB"
PARAMETERS = 8 * (512 * 512 + 3 * 512)
EAGERLY = {"BOTTOMLESS_EVICT_EAGERLY": "1"}


def train(cases, disk, **how):
    """By rank, then by case."""
    return run_ranks(PROGRAM, json.dumps(cases), disk, **how)


def sharded(stage, memory, steps=4, **options):
    return {"what": "sharded", "stage": stage, "memory": memory, "steps": steps, **options}


def check_same_bits(results):
    """All ranks have the same parameters, and every run the same losses."""
    first = [rank[0] for rank in results]
    for rank, mine in enumerate(results):
        for number, run in enumerate(mine):
            assert run["losses"] == first[rank]["losses"], (rank, number)
            assert run["state"] == first[0]["state"], (rank, number)


def check_moved(runs):
    for run in runs:
        assert run["stats"]["evictions"] > 0 and run["stats"]["written_bytes"] > 0, run["stats"]
        assert run["stats"]["peak_bytes"] <= run["stats"]["limit_bytes"]
        assert run["traffic"][-1]["received_gradient_bytes"] > 0


def received(run, what):
    """In all steps but the first."""
    return run["traffic"][-1][what] - run["traffic"][0][what]
