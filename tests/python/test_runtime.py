"""The runtime object: stats, kinds, steps, one limit at a time, tensors that outlive it, the end of a process."""

import copy
import gc

import pytest
import torch
from torch import nn

import bottomless
from helpers import COUNTERS, KEYS, KINDS, MIB, SECONDS, check_moved, fingerprints, limit, run_python, squeeze


def trained(layers=6, steps=1, width=512):
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, width)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def test_stats_have_every_key_with_its_type(disk):
    with limit("12MiB", disk) as runtime:
        model, optimizer = trained()
        stats = runtime.stats()
    assert stats.keys() == KEYS
    assert all(type(stats[key]) is int and stats[key] >= 0 for key in COUNTERS)
    assert all(type(stats[key]) in (int, float) and stats[key] >= 0 for key in SECONDS)
    assert stats["resident_bytes"].keys() == KINDS
    assert all(type(count) is int and count >= 0 for count in stats["resident_bytes"].values())
    assert sum(stats["resident_bytes"].values()) <= stats["limit_bytes"] == 12 * MIB
    assert 0 < stats["overhead_bytes"] < stats["peak_bytes"]


def test_stats_count_the_traffic(disk):
    with bottomless.limit("12MiB", disk) as runtime:
        before = runtime.stats()
        assert (before["evictions"], before["read_bytes"], before["written_bytes"], before["steps"]) == (0, 0, 0, 0)
        tensors = [torch.ones(1 << 18) for _ in range(20)]
        away = runtime.stats()
        assert away["written_bytes"] >= 20 * MIB - 12 * MIB
        assert away["evictions"] > 0
        assert sum(float(tensor.sum()) for tensor in tensors) == 20 * (1 << 18)
        back = runtime.stats()
        assert back["read_bytes"] >= 20 * MIB - 12 * MIB
        assert back["demand_fetches"] > 0
        assert back["stall_seconds"] > 0
        assert back["read_bytes"] <= 20 * MIB  # nothing was read twice: every tensor was used once


def test_nothing_moves_while_all_fits(disk):
    with bottomless.limit("256MiB", disk) as runtime:
        trained(steps=3)
        stats = runtime.stats()
    assert (stats["evictions"], stats["written_bytes"], stats["read_bytes"], stats["demand_fetches"]) == (0, 0, 0, 0)


def test_kinds_are_counted(disk):
    with bottomless.limit("256MiB", disk) as runtime:
        model, optimizer = trained(layers=6)
        resident = runtime.stats()["resident_bytes"]
        weights = 6 * MIB
        assert weights <= resident["parameter"] < 1.2 * weights
        assert weights <= resident["gradient"] < 1.2 * weights
        assert 2 * weights <= resident["state"] < 2.4 * weights
        optimizer.zero_grad()
        assert runtime.stats()["resident_bytes"]["gradient"] == 0
        del model, optimizer
        gc.collect()
        resident = runtime.stats()["resident_bytes"]
        assert (resident["parameter"], resident["state"]) == (0, 0)


def test_small_tensors_count_against_the_limit(disk):
    with bottomless.limit("16MiB", disk) as runtime:
        small = [torch.ones(1000) for _ in range(1500)]  # 6 MB in pieces too small to be moved
        resident = runtime.stats()["resident_bytes"]["other"]
        assert 6_000_000 <= resident < 7_500_000
        large = [torch.ones(1 << 18) for _ in range(16)]
        stats = runtime.stats()
        check_moved(stats)
        assert sum(float(tensor.sum()) for tensor in small + large) == 1_500_000 + 16 * (1 << 18)
        del small
        assert runtime.stats()["resident_bytes"]["other"] < resident - 5_000_000


def test_small_tensors_are_given_back_to_the_limit_they_were_charged_to(disk):
    """Freed under another limit they must not make that one believe that it has more room."""
    unlimited = [torch.ones(1000) for _ in range(500)]
    with bottomless.limit("16MiB", disk):
        before = [torch.ones(1000) for _ in range(1500)]
    with bottomless.limit("16MiB", disk) as runtime:
        small = [torch.ones(1000) for _ in range(1500)]
        charged = runtime.stats()["resident_bytes"]["other"]
        del before, unlimited
        gc.collect()
        assert runtime.stats()["resident_bytes"]["other"] >= charged >= 6_000_000
        large = [torch.ones(1 << 18) for _ in range(16)]
        stats = runtime.stats()
        check_moved(stats)
        assert sum(stats["resident_bytes"].values()) + stats["overhead_bytes"] <= stats["limit_bytes"]
        assert sum(float(tensor.sum()) for tensor in small + large) == 1_500_000 + 16 * (1 << 18)


def test_small_tensors_of_a_closed_limit_are_given_back_to_it(disk):
    """It still moves its large ones, and needs the room for them."""
    with bottomless.limit("9MiB", disk) as closed:
        small = [torch.ones(1000) for _ in range(1000)]
        large = [torch.full((1 << 18,), float(n)) for n in range(12)]
    charged = closed.stats()["resident_bytes"]["other"]
    assert charged >= 4_000_000
    with bottomless.limit("9MiB", disk):
        del small
        gc.collect()
        assert [float(tensor[0]) for tensor in large] == list(range(12))
    del large


def test_optimizers_mark_steps(disk):
    with bottomless.limit("64MiB", disk) as runtime:
        trained(steps=3)
        stats = runtime.stats()
        assert stats["steps"] == 3
        assert 0 < stats["step_seconds"] < 60


def test_steps_marked_by_hand_replace_those_of_optimizers(disk):
    with bottomless.limit("64MiB", disk) as runtime:
        runtime.step()
        trained(steps=3)
        assert runtime.stats()["steps"] == 1
        bottomless.step()
        assert runtime.stats()["steps"] == 2


def test_one_limit_at_a_time(disk):
    with bottomless.limit("16MiB", disk) as runtime:
        with pytest.raises(ValueError, match="already in force"):
            bottomless.limit("16MiB", disk)
        bottomless.step()  # the first one is still the current one
        assert runtime.stats()["steps"] == 1
    with bottomless.limit("16MiB", disk) as again:
        assert again.stats()["steps"] == 0


def test_closed_runtime(disk):
    runtime = bottomless.limit("16MiB", disk)
    trained()
    runtime.close()
    assert runtime.stats()["steps"] == 1
    assert runtime.stats().keys() == KEYS
    with pytest.raises(RuntimeError, match="closed"):
        runtime.step()
    with pytest.raises(RuntimeError, match="no limit is in force"):
        bottomless.step()
    runtime.close()  # once more does no harm
    trained()  # and optimizers no longer mark steps
    assert runtime.stats()["steps"] == 1


def test_limit_ends_with_an_exception(disk):
    with pytest.raises(KeyError), bottomless.limit("16MiB", disk):
        raise KeyError
    with bottomless.limit("16MiB", disk):
        pass


def test_dropped_runtime_stays_in_force(disk):
    """limit() puts the process under a limit from now on, also for those who do not keep what it returns."""
    bottomless.limit("10MiB", disk)
    gc.collect()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.randn(8 << 20)
    finally:
        bottomless._current.close()


def test_tensors_outlive_the_limit(disk, eviction):
    torch.manual_seed(0)
    plain = fingerprints(dict(trained(steps=3)[0].named_parameters()))
    torch.manual_seed(0)
    with bottomless.limit("10MiB", disk) as runtime:
        model, optimizer = trained(steps=2)
        state = torch.get_rng_state()
        squeeze()
    check_moved(runtime.stats())
    torch.set_rng_state(state)
    optimizer.zero_grad()  # goes on without a limit; what is away is still there
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
    assert fingerprints(dict(model.named_parameters())) == plain


def test_tensors_of_several_limits_work_together(disk):
    weights = []
    for turn in range(5):
        with limit("9MiB", disk):
            weights.append([torch.full((512, 512), float(turn)) for _ in range(12)])
    with limit("9MiB", disk):
        sums = [sum(group) for group in zip(*weights)]
    assert all(bool((total == 0 + 1 + 2 + 3 + 4).all()) for total in sums)


def test_more_limits_than_can_be_remembered(disk):
    """Closed limits whose tensors live are kept, sixteen at most; the message says what to do."""
    kept = []
    with pytest.raises(ValueError, match="free some"):
        for _ in range(20):
            with bottomless.limit("8MiB", disk):
                kept.append(torch.ones(1 << 18))
    assert all(bool((tensor == 1).all()) for tensor in kept)
    kept.clear()
    with bottomless.limit("8MiB", disk):
        assert float(torch.ones(1 << 18).sum()) == 1 << 18


def test_deep_copies_and_pickles_of_tensors_away(disk):
    with limit("10MiB", disk):
        model, optimizer = trained()
        squeeze()
        twin = copy.deepcopy(model)
        assert fingerprints(twin.state_dict()) == fingerprints(model.state_dict())


# --- the end of a process ---

ENDINGS = {
    "falls_off_the_end": "",
    "exits": "sys.exit(0)",
    "exits_inside_a_context": "runtime.__enter__(); sys.exit()",
    "closes_first": "runtime.close()",
    "leaves_a_cycle": "cycle = [tensors]; cycle.append(cycle); del tensors",
    "has_gradients": "sum(t.float().requires_grad_().sum() for t in tensors[:4]).backward()",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_process_ends_cleanly_with_live_tensors(ending, disk):
    code = f"""if True:
        import sys, torch, bottomless
        from helpers import squeeze
        runtime = bottomless.limit("10MiB", sys.argv[1])
        tensors = [torch.full((1 << 18,), n) for n in range(16)]
        squeeze()
        print("ready", flush=True)
        {ENDINGS[ending]}
    """
    for _ in range(2):
        outcome = run_python(code, disk)
        assert (outcome.code, outcome.out, outcome.err) == (0, "ready\n", "")
