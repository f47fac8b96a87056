"""Ranks that do not do the same: right and without a hang; and ranks that end or are late: a clear end for the others."""

import pytest

from helpers import check_moved
from ranks import outcomes_of_ranks, run_ranks

PROGRAM = '''
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
import bottomless
from helpers import fingerprints
from ranks import begin, end

task, disk, deadline = sys.argv[1], sys.argv[2], float(sys.argv[3])
rank, ranks = begin()
noticed = pathlib.Path(os.environ["RESULT"]).with_name("noticed")  # rank 0 has ended
torch.set_default_dtype(torch.float64)
runtime = bottomless.limit(ranks * 4 << 20, disk)
WIDTH = 96 * ranks  # so that a share is large enough to be managed, and not all of them fit


def agree(model):
    states = [None] * ranks
    dist.all_gather_object(states, fingerprints(model.state_dict()))
    assert all(state == states[0] for state in states), [n for n in states[0] if states[1][n] != states[0][n]]


class Experts(nn.Module):
    """A mixture of which each token goes to one expert, by its sign in one place."""

    def __init__(self, experts=4):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(experts))

    def forward(self, tokens, chosen):
        tokens = self.first(tokens)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            if len(mine) > 0:
                result = result.index_copy(0, mine, expert(tokens[mine]))
        return result


def make(kind=torch.optim.AdamW, stage=3, **options):
    torch.manual_seed(0)
    model = Experts()
    optimizer = kind(model.parameters(), **{"lr": 1e-2, **options})
    return model, optimizer, bottomless.shard(model, optimizer, stage=stage, deadline=deadline)


def tokens_of(step, rank=rank):
    data = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(6, WIDTH, generator=data)


def chosen_of(step, rank):
    """Rank 0 uses experts 0 and 1, the others 1 and 2; in odd steps only 3 is used, and by rank 0 alone."""
    if step % 2 == 1:
        return torch.full((6,), 3 if rank == 0 else 1)
    return torch.tensor([0, 1] * 3) + min(rank, 1)


def loss_of(model, step, rank=rank):
    return model(tokens_of(step, rank), chosen_of(step, rank)).square().mean()


def like_a_single_rank(model, steps_of_ranks, clip=None, options=lambda step: {}):
    """The same with all ranks' batches on one; where a rank has none, the mean is over all ranks all the same."""
    torch.manual_seed(0)
    other = Experts()
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    for step, batches in enumerate(steps_of_ranks):
        optimizer.zero_grad()
        optimizer.param_groups[0].update(options(step))
        (sum(loss_of(other, batch, of) for of, batch in batches) / ranks).backward()
        if clip:
            nn.utils.clip_grad_norm_(other.parameters(), clip)
        optimizer.step()
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, msg=lambda text: f"{name}: {text}")


def experts():
    for stage in (3, 2, 1):
        model, optimizer, sharded = make(stage=stage)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        agree(model)
        like_a_single_rank(model, [[(each, step) for each in range(ranks)] for step in range(4)])
        sharded.close()


def lengths():
    """Generation: each rank runs as many forwards as it likes, while others wait at a step or train on."""
    model, optimizer, sharded = make()
    for step in range(3):
        with torch.no_grad():
            token = tokens_of(step)
            for _ in range(1 + 5 * ((rank + step) % 2)):
                token = model(token, chosen_of(step, rank)).tanh()
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    agree(model)
    like_a_single_rank(model, [[(each, step) for each in range(ranks)] for step in range(3)])
    sharded.close()


def skipping():
    """Rank 1 skips the second of four batches, so that its steps are fewer: in the last one it only takes part."""
    model, optimizer, sharded = make()
    options = lambda step: {"lr": 1e-2 * 0.5**step, "weight_decay": 0.1 * step, "betas": (0.9 - 0.1 * step, 0.99), "maximize": step == 3}
    step = 0
    for batch in range(4):
        if rank == 1 and batch == 1:
            continue
        optimizer.param_groups[0].update(options(step))
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        step += 1
    sharded.close()
    agree(model)
    batch_of = lambda each, step: [0, 2, 3, None][step] if each == 1 else step
    steps = [[(each, batch_of(each, step)) for each in range(ranks) if each != 1 or step < 3] for step in range(4)]
    like_a_single_rank(model, steps, clip=0.01, options=options)
    assert optimizer.param_groups[0]["betas"] == options(3)["betas"] and optimizer.param_groups[0]["maximize"] is True


def fewer_steps():
    for stage in (3, 1):
        model, optimizer, sharded = make(stage=stage)
        for step in range(2 if rank == 0 else 5):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        sharded.close()
        agree(model)
        steps = [[(each, step) for each in range(ranks) if each > 0 or step < 2] for step in range(5)]
        like_a_single_rank(model, steps)


def all_of_them():
    for part in (experts, lengths, skipping, fewer_steps):
        part()
        print(part.__name__, "done", file=sys.stderr, flush=True)


def ends(how):
    model, optimizer, sharded = make()
    try:
        for step in range(1000):
            if rank == 1 and step == 2:
                how()
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
    finally:
        if rank == 0:
            noticed.touch()


def is_killed():
    ends(lambda: os.kill(os.getpid(), signal.SIGKILL))


def fails():
    def fail():
        raise ValueError("the script has a bug")

    ends(fail)


def is_late():
    def sleep():
        torch.ones(3).sin()
        while not noticed.exists():
            time.sleep(0.1)
        os._exit(5)

    ends(sleep)


def clips_alone():
    model, optimizer, sharded = make()
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        if rank == 0 or step < 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()


globals()[task]()
end(runtime.stats())
'''
ALONE = {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("env, ranks", [({}, 2), ({"BOTTOMLESS_EVICT_EAGERLY": "1"}, 2), ({}, 3)])
def test_ranks_that_do_not_do_the_same(env, ranks, disk):
    for stats in run_ranks(PROGRAM, "all_of_them", disk, 20, ranks=ranks, env=ALONE | env):
        check_moved(stats)


@pytest.mark.parametrize("task, code", [("is_killed", -9), ("fails", 1)])
def test_a_rank_that_ends(task, code, disk):
    (waiting, ended), _ = outcomes_of_ranks(PROGRAM, task, disk, 600, env=ALONE)
    assert ended.code == code
    assert waiting.code == 1 and "ended by the test" not in waiting.err
    assert "rank 1 has ended" in waiting.err and "step 2" in waiting.err, waiting.err


def test_a_rank_that_is_late(disk):
    (waiting, late), _ = outcomes_of_ranks(PROGRAM, "is_late", disk, 15, env=ALONE)
    assert late.code == 5
    assert waiting.code == 1, waiting.err
    for part in ("rank 1", "15 s", "step 2", "last operator aten::sin"):
        assert part in waiting.err, waiting.err


def test_a_rank_that_clips_while_another_does_not(disk):
    """Its norm is over all ranks: the other one, which has gone on to the step, says so at once."""
    (clips, goes_on), _ = outcomes_of_ranks(PROGRAM, "clips_alone", disk, 600, env=ALONE)
    assert goes_on.code == 1 and "begin step 3: rank 0 has asked for something" in goes_on.err, goes_on.err
    assert "clip_grad_norm_" in goes_on.err and "(the deadline)" not in goes_on.err + clips.err
    assert clips.code == 1 and "rank 1 has ended" in clips.err, clips.err
