"""bottomless.shard: the same bits wherever blocks are, the losses of DDP and FSDP2, and the traffic and memory of ZeRO.

The order of sums is stated in the C++ (each owner adds from its own rank on, cyclically), so only DDP, FSDP2 and a single
rank with the whole batch differ in the last bits.
"""

import json

import pytest

from ranks import outcomes_of_ranks, run_ranks

TRAIN = '''
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


def train(model, optimizer, steps):
    for batch in batches(steps):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.item()


def sharded(stage, memory, steps, disk_limit=None, **options):
    with bottomless.limit(memory, disk, disk_limit=disk_limit) as runtime:
        model = layers()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        sharded = bottomless.shard(model, optimizer, stage=stage, deadline=60, **options)
        losses, traffic = [], []
        for loss in train(model, optimizer, steps):
            losses.append(loss)
            traffic.append(sharded.stats())
        stats = runtime.stats()
        state = fingerprints(model.state_dict())
        sharded.close()
        return {"losses": losses, "state": state, "traffic": traffic, "stats": stats}


def ddp(steps):
    model = nn.parallel.DistributedDataParallel(layers())
    return {"losses": list(train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), steps))}


def fsdp(steps):
    from torch.distributed.fsdp import fully_shard

    model = layers()
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return {"losses": list(train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), steps))}


def alone(steps):
    model = layers()
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


def train(cases, disk, **how):
    """By rank, then by case."""
    return run_ranks(TRAIN, json.dumps(cases), disk, **how)


def check_same_bits(results):
    """All ranks have the same parameters, and every run the same losses."""
    first = [rank[0] for rank in results]
    for rank, mine in enumerate(results):
        for run in mine:
            assert run["losses"] == first[rank]["losses"], rank
            assert run["state"] == first[0]["state"], rank


def sharded(stage, memory, steps=4, **options):
    return {"what": "sharded", "stage": stage, "memory": memory, "steps": steps, **options}


def check_moved(results):
    for rank in results:
        for run in rank:
            assert run["stats"]["evictions"] > 0 and run["stats"]["written_bytes"] > 0, run["stats"]
            assert run["stats"]["peak_bytes"] <= run["stats"]["limit_bytes"]
            assert run["traffic"][-1]["received_gradient_bytes"] > 0


def test_bits_do_not_depend_on_stage_or_limit(disk):
    ample = train([sharded(stage, "64MiB") for stage in (1, 2, 3)], disk)
    tight = train([sharded(stage, TIGHT) for stage in (1, 2, 3)], disk)
    check_same_bits([a + t for a, t in zip(ample, tight)])
    check_moved(tight)
    hostile = train([sharded(stage, "64MiB") for stage in (3, 2)], disk, env={"BOTTOMLESS_EVICT_EAGERLY": "1"})
    check_same_bits([a + t for a, t in zip(ample, hostile)])
    check_moved(hostile)
    when_needed = train([sharded(3, TIGHT)], disk, env={"BOTTOMLESS_MOVEMENT": "when_needed"})
    check_same_bits([a + t for a, t in zip(ample, when_needed)])
    check_moved(when_needed)


def test_three_ranks(disk):
    results = train([sharded(3, "64MiB"), sharded(3, TIGHT), sharded(1, TIGHT)], disk, ranks=3)
    check_same_bits(results)
    check_moved([rank[1:] for rank in results])


def test_losses_are_those_of_ddp_fsdp_and_a_single_rank(disk):
    others = [{"what": "ddp", "steps": 50}, {"what": "fsdp", "steps": 50}, {"what": "alone", "steps": 50}]
    for ours, *theirs in train([sharded(3, "24MiB", 50), *others], disk):
        assert ours["losses"][-1] < 0.9 * ours["losses"][0]
        for run in theirs:
            assert run["losses"] == pytest.approx(ours["losses"], rel=1e-4)


def received(run, what):
    """In all steps but the first."""
    return run["traffic"][-1][what] - run["traffic"][0][what]


def test_traffic(disk):
    """As in ZeRO's paper: gradients and parameters once each for stages 1 and 2; parameters a second time for stage 3."""
    ranks, steps = 2, 6
    others = 4 * PARAMETERS * (ranks - 1) / ranks * (steps - 1)
    cases = [sharded(1, "64MiB", steps), sharded(2, "64MiB", steps), sharded(3, TIGHT, steps)]
    for first, second, third in train(cases, disk):
        for run in (first, second, third):
            assert received(run, "received_gradient_bytes") == pytest.approx(others, rel=0.01)
        for run in (first, second):  # a layer or two of the next step may be there already
            assert received(run, "received_parameter_bytes") == pytest.approx(others, abs=2 * 4 * 512 * 512)
        assert 1.3 * others < received(third, "received_parameter_bytes") < 2.05 * others


def test_quantised(disk):
    """A quarter of the bytes, the same on all ranks, and a loss that stays within 5 % of where it began."""
    steps = 8
    exact = sharded(3, TIGHT, steps)
    cases = [exact, exact | {"quantised_weights": True}, exact | {"quantised_gradients": True}]
    first, second = train(cases, disk)
    assert [run["state"] for run in first] == [run["state"] for run in second]
    for plain, weights, gradients in (first, second):
        assert received(gradients, "received_gradient_bytes") < 0.27 * received(plain, "received_gradient_bytes")
        assert received(weights, "received_parameter_bytes") < 0.35 * received(plain, "received_parameter_bytes")
        for run in (weights, gradients):
            assert run["losses"] == pytest.approx(plain["losses"], abs=0.05 * plain["losses"][0])
            assert run["losses"] != plain["losses"]



def test_memory(disk):
    """Nothing may go to disk but a layer: 16 / N bytes a parameter and a few layers at a time fit, and stage 1 does not."""
    all_of_it, share = 16 * PARAMETERS, 16 * PARAMETERS / 2
    working_set = 11 << 20  # a few layers with their gradients, buffers and threads
    memory = int(share + working_set)
    assert memory < all_of_it
    for (run,) in train([sharded(3, memory, 3, disk_limit="1MiB")], disk):
        assert run["stats"]["peak_bytes"] <= memory
    outcomes, _ = outcomes_of_ranks(TRAIN, json.dumps([sharded(1, memory, 3, disk_limit="1MiB")]), disk)
    assert any("(--disk-limit)" in outcome.err for outcome in outcomes), outcomes
