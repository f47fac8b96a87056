"""What a model and its training may be under bottomless.shard, each against the same under DDP or plain PyTorch."""

import pytest

from helpers import check_moved
from ranks import run_ranks

PROGRAM = '''
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import bottomless
from helpers import fingerprints
from ranks import begin, end

tasks, disk = sys.argv[1].split(","), sys.argv[2]
rank, ranks = begin()
torch.set_default_dtype(torch.float64)  # so that another order of sums does not change what Adam does where gradients are tiny
runtime = bottomless.limit("8MiB", disk)
sharded = None


def agree(model):
    """Every rank has the same bits."""
    states = [None] * ranks
    dist.all_gather_object(states, fingerprints(model.state_dict()))
    assert all(state == states[0] for state in states), [n for n in states[0] if states[1][n] != states[0][n]]


def close_to(mine, theirs, tolerance=2e-5):
    buffers = {name for name, _ in mine.named_buffers()} if rank > 0 else ()  # DDP takes over rank 0's before a pass
    for (name, ours), (_, other) in zip(mine.state_dict().items(), theirs.state_dict().items()):
        if name in buffers:
            continue
        torch.testing.assert_close(ours, other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")


def compare(make, train, optimizer=torch.optim.AdamW, stages=(1, 3), wrap=DistributedDataParallel, tolerance=2e-5, **options):
    """Trains it under each stage and under DDP; `train(call, model, optimizer, no_sync)` does a few steps."""
    global sharded
    torch.manual_seed(0)
    other = make()
    call = wrap(other) if wrap else other
    expected = train(call, other, optimizer(other.parameters(), **options), getattr(call, "no_sync", None))
    for stage in stages:
        torch.manual_seed(0)
        model = make()
        made = optimizer(model.parameters(), **options)
        sharded = bottomless.shard(model, made, stage=stage, deadline=600)
        found = train(model, model, made, sharded.no_sync)
        close_to(model, other, tolerance)
        agree(model)
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        sharded.close()
        sharded = None


def layers(width=192, count=3):
    return nn.Sequential(*(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh()) for _ in range(count)))


def batches(steps, width=192):
    data = torch.Generator().manual_seed(rank)
    return [torch.randn(4, width, generator=data) for _ in range(steps)]


def steps(call, model, optimizer, no_sync=None, count=3, width=192):
    for batch in batches(count, width):
        optimizer.zero_grad()
        call(batch.to(next(model.parameters()).dtype)).square().mean().backward()
        optimizer.step()


def accumulation():
    def train(call, model, optimizer, no_sync):
        for step, batch in enumerate(batches(3)):
            optimizer.zero_grad()
            before = sharded and sharded.stats()
            with no_sync():
                call(batch).square().mean().backward()
                call(-batch).square().mean().backward()
            if sharded:
                assert sharded.stats()["received_gradient_bytes"] == before["received_gradient_bytes"]
            call(batch + 1).square().mean().backward()
            optimizer.step()
            if sharded:
                assert sharded.stats()["received_gradient_bytes"] > before["received_gradient_bytes"]

    compare(layers, train, stages=(1, 2, 3))

    def twice(call, model, optimizer, no_sync):
        for batch in batches(3):
            optimizer.zero_grad()
            call(batch).square().mean().backward()
            call(batch + 1).square().mean().backward()
            optimizer.step()
            optimizer.step()  # nobody has new gradients
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()  # zeros move AdamW, too

    compare(layers, twice, stages=(1, 2, 3))


def clipping():
    for limit in (1e-3, 1e3):
        def train(call, model, optimizer, no_sync):
            norms = []
            for batch in batches(4):
                optimizer.zero_grad()
                call(batch).square().mean().backward()
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), limit))
                optimizer.step()
            return torch.stack(norms)

        compare(layers, train, optimizer=torch.optim.SGD, stages=(1, 2, 3), lr=0.5, momentum=0.9)

    def values(call, model, optimizer, no_sync):
        for batch in batches(2):
            optimizer.zero_grad()
            call(batch).square().mean().backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-4)
            optimizer.step()
        return model[0][1].weight.grad.mean() + 0  # gathers it

    compare(layers, values, optimizer=torch.optim.SGD, lr=0.5)


def frozen():
    def make():
        model = layers()
        model[1].requires_grad_(False)
        return model

    def train(call, model, optimizer, no_sync):
        steps(call, model, optimizer)
        assert model[1][1].weight.grad is None
        model[1].requires_grad_(True)
        model[0].requires_grad_(False)
        if call is not model:  # DDP listens to what required gradients when it was made
            call = DistributedDataParallel(model)
        steps(call, model, optimizer)

    compare(make, train)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 96)
        self.norm = nn.BatchNorm1d(96)
        self.head = nn.Linear(96, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, batch):
        return self.head(self.norm(self.embed((batch.abs() * 20).long().clamp(max=63)[:, 0])))


def tied_and_batch_norm():
    compare(Tied, steps)
    compare(lambda: nn.Sequential(*(nn.BatchNorm1d(192) for _ in range(4))), steps)  # twelve buffers


class Odd(nn.Module):
    """Parameters of 1, 7, 1025 and no elements, of three types; some are not used by all."""

    def __init__(self):
        super().__init__()
        for name, size, dtype in (("one", 1, None), ("seven", 7, torch.float32), ("more", 1025, torch.float32), ("none", 0, None),
                                  ("narrow", 4099, torch.bfloat16), ("wider", 4097, None), ("unused", 2050, None),
                                  ("sometimes", 5001, torch.float32)):
            self.register_parameter(name, nn.Parameter(torch.randn(size, dtype=dtype)))
        self.wide = nn.Parameter(torch.randn(33, 65).t())

    def forward(self, batch, used):
        result = (batch.mean() * self.one).sum() + self.seven.tanh().mean() + self.none.sum() + self.wide.tanh().mean()
        result = result + self.more.sin().mean() * batch.std() + self.narrow.float().sin().mean() + self.wider.cos().mean()
        return result + self.sometimes.sin().mean() if used else result


def odd():
    def train(call, model, optimizer, no_sync):
        unused = model.unused.detach().clone()
        for step, batch in enumerate(batches(4)):
            optimizer.zero_grad()
            call(batch, step % 2 == 0 or rank == 0).square().backward()
            optimizer.step()
        assert torch.equal(model.unused, unused)  # not even decayed, as without ranks

    # DDP leaves what no rank uses alone, and reduces what one rank uses.
    ddp = lambda model: DistributedDataParallel(model, find_unused_parameters=True)
    compare(Odd, train, wrap=ddp, stages=(1, 2, 3), tolerance=1e-3)


def optimizers():
    names = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
    for name in names:
        kind = getattr(torch.optim, name)
        ways = [{"foreach": True}, {"foreach": False}]
        if name in ("SGD", "Adam", "AdamW", "Adagrad"):
            ways.append({"fused": True})
        for way in ways:
            more = {"momentum": 0.9} if name == "SGD" else {}
            # Rprop goes by signs, and those of sums near zero are as they happen to be rounded.
            compare(lambda: layers(count=2), steps, kind, (3,), tolerance=5e-3 if name == "Rprop" else 1e-4, lr=1e-3, **way, **more)


def whole_tensors():
    only_matrices = lambda: nn.Sequential(*(nn.Linear(96, 96, bias=False) for _ in range(3)))
    train = lambda *args: steps(*args, width=96)
    compare(only_matrices, train, torch.optim.Adafactor, lr=1e-2, tolerance=1e-4)
    if hasattr(torch.optim, "Muon"):
        compare(only_matrices, train, torch.optim.Muon, lr=1e-2, tolerance=2e-2)  # it iterates in bfloat16


def own_optimizer():
    class Clipping(torch.optim.SGD):  # Adam would hardly show by how much it was clipped
        def __init__(self, parameters, max_norm, **options):
            super().__init__(parameters, **options)
            self.max_norm = max_norm

        def step(self, closure=None):
            nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.max_norm)
            return super().step(closure)

    for limit in (1e-3, 1e3):
        torch.manual_seed(0)
        other = layers().float()
        steps(DistributedDataParallel(other), other, Clipping(other.parameters(), limit, lr=1 / limit))
        for stage in (1, 3):
            torch.manual_seed(0)
            model = layers().float()
            optimizer = bottomless.optim.SGD(model.parameters(), lr=1 / limit, max_norm=limit)
            mine = bottomless.shard(model, optimizer, stage=stage, deadline=600)
            steps(model, model, optimizer)
            close_to(model, other, 5e-4)
            agree(model)
            mine.close()


def scheduler_and_loading():
    def train(call, model, optimizer, no_sync):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        data = torch.Generator().manual_seed(7)
        for part in range(3):
            steps(call, model, optimizer, count=2)
            scheduler.step()
            saved = {name: torch.randn(value.shape, generator=data) * 0.1 for name, value in model.state_dict().items()}
            model.load_state_dict(saved)
            assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
        with torch.no_grad():
            model[0][1].weight.data.mul_(0.5)
            model[0][1].bias.data.mul_(0.5)
        steps(call, model, optimizer, count=1)

    compare(layers, train, stages=(1, 2, 3))


for task in tasks:
    globals()[task]()
    print(task, "done", file=sys.stderr, flush=True)
end(runtime.stats())
'''


@pytest.mark.parametrize("eviction", ["when_needed", "eagerly"])
@pytest.mark.parametrize(
    "tasks",
    [
        "accumulation,clipping,frozen,tied_and_batch_norm,odd",
        "optimizers,whole_tensors,own_optimizer,scheduler_and_loading",
    ],
)
def test_models(tasks, eviction, disk):
    env = {"OMP_NUM_THREADS": "1"} | ({"BOTTOMLESS_EVICT_EAGERLY": "1"} if eviction == "eagerly" else {})
    for stats in run_ranks(PROGRAM, tasks, disk, env=env):
        check_moved(stats)
