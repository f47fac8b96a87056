"""Where a step ends in programs with several optimizers."""

import threading

import pytest
import torch
from torch import nn

import bottomless
from bottomless._step_ends import StepEnds
from helpers import fingerprints


def optimizers(count):
    return [torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(count)]


def ends(order, times, known):
    return [known.after(optimizer) for _ in range(times) for optimizer in order]


def test_one_optimizer_ends_every_step():
    assert all(ends(optimizers(1), 5, StepEnds()))


@pytest.mark.parametrize("times", [2, 3, 8, 17, 100])
def test_the_last_of_several_ends_the_step(times):
    known, order = StepEnds(), optimizers(times)
    ends(order, 1, known)
    assert ends(order, 4, known) == 4 * ([False] * (times - 1) + [True])


def test_the_one_that_is_called_least_ends_the_step():
    critic, generator = optimizers(2)
    known = StepEnds()
    ends([critic] * 5 + [generator], 1, known)
    assert ends([critic] * 5 + [generator], 3, known) == 3 * [False, False, False, False, False, True]


def test_one_that_is_called_seldom_has_no_part_in_it():
    often, seldom = optimizers(2)
    known = StepEnds()
    ends([often] * 100 + [seldom], 2, known)
    assert ends([often] * 100 + [seldom], 1, known) == 100 * [True] + [False]


def test_another_optimizer_takes_over():
    first, second = optimizers(2)
    known = StepEnds()
    for order in ([first], [second], [first], [second]):
        found = ends(order, 30, known)
        assert found.count(False) <= StepEnds.MOST + 1 and all(found[StepEnds.MOST + 1 :])


def test_an_optimizer_that_is_gone_is_forgotten():
    known = StepEnds()
    for _ in range(40):
        assert known.after(optimizers(1)[0])
    assert len(known._known) <= 1 and len(known._regular) <= 1


def test_threads_may_call_at_once():
    known, found = StepEnds(), []

    def work():
        for optimizer in optimizers(50):
            found.append(known.after(optimizer))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 400


def test_two_optimizers_make_one_step(disk):
    """A critic trained three times for each turn of a generator, in a third of the memory."""

    def work(runtime=None):
        torch.manual_seed(2)
        generator = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])
        critic = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])
        make = torch.optim.Adam(generator.parameters(), lr=1e-3, fused=True)
        judge = torch.optim.Adam(critic.parameters(), lr=1e-3, fused=True)
        before = None
        for turn in range(10):
            if turn == 5 and runtime is not None:
                before = runtime.stats()
            for _ in range(3):
                judge.zero_grad()
                with torch.no_grad():
                    made = generator(torch.randn(16, 512))
                critic(made).square().mean().backward()
                judge.step()
            make.zero_grad()
            (-critic(generator(torch.randn(16, 512))).square().mean()).backward()
            make.step()
        both = dict(nn.ModuleList([generator, critic]).named_parameters())
        if runtime is None:
            return fingerprints(both)
        after = runtime.stats()
        return fingerprints(both), {name: after[name] - before[name] for name in after if name != "resident_bytes"}

    plain = work()
    with bottomless.limit("20MiB", disk) as runtime:
        limited, counts = work(runtime)
    assert limited == plain
    assert counts["steps"] == 5 and counts["evictions"] > 0, counts
    assert counts["planned_fetches"] > 4 * counts["demand_fetches"], counts
