"""bottomless.optim.Adafactor beside torch's: the same numbers and state_dict, the same bits under a limit."""

import copy
import io

import pytest
import torch
from torch import nn

import bottomless
import bottomless.optim as ours
from helpers import check_moved, fingerprints, training_state

SHAPES = {
    "scalar": (),
    "vector": (77,),
    "long_vector": (70001,),
    "square": (64, 64),
    "tall": (600, 9),
    "wide": (5, 2100),
    "one_column": (130, 1),
    "one_row": (1, 130),
    "one_element": (1, 1),
    "three_dimensions": (4, 30, 21),
    "convolution": (16, 8, 3, 3),
}
OPTIONS = {
    "default": {},
    "weight_decay": {"weight_decay": 0.1, "lr": 0.02},
    "maximize": {"maximize": True, "beta2_decay": -0.5},
    "eps": {"eps": (1e-3, 1e-2), "d": 1.5},
    "large_rate": {"lr": 1.0},
}


def parameters(dtype=torch.float32, shapes=SHAPES):
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes.values()]


def pull(params, optimizer, steps, seed=2):
    """Towards fixed targets, with noise; returns the mean distance from them."""
    generator = torch.Generator().manual_seed(seed)
    targets = [torch.randn(p.shape, generator=torch.Generator().manual_seed(3)) for p in params]
    sign = -1 if optimizer.param_groups[0]["maximize"] else 1
    for _ in range(steps):
        for parameter, target in zip(params, targets):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = (sign * (parameter.detach().float() - target + 0.1 * noise)).to(parameter.dtype)
        optimizer.step()
    return sum((p.detach().float() - t).square().mean().item() for p, t in zip(params, targets)) / len(params)


def distances(a, b):
    return [((x.detach().float() - y.detach().float()).norm() / y.detach().float().norm()).item() for x, y in zip(a, b)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_hundreds_of_steps_end_where_torch_does(options):
    a, b = parameters(), parameters()
    mine, theirs = ours.Adafactor(a, **options), torch.optim.Adafactor(b, foreach=False, **options)
    assert pull(a, mine, 300) == pytest.approx(pull(b, theirs, 300), rel=1e-4)
    assert max(distances(a, b)) < 1e-6, dict(zip(SHAPES, distances(a, b)))
    for mine_of, theirs_of in zip(mine.state_dict()["state"].values(), theirs.state_dict()["state"].values()):
        assert mine_of.keys() == theirs_of.keys()
        for name, value in theirs_of.items():
            assert torch.allclose(mine_of[name], value, rtol=1e-4, atol=1e-9), name


def test_a_network_learns_as_with_torch():
    def run(make):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
        optimizer = make(model.parameters())
        generator = torch.Generator().manual_seed(2)
        for _ in range(100):
            x = torch.randn(8, 3, 8, 8, generator=generator)
            loss = nn.functional.cross_entropy(model(x), x.mean((1, 2, 3)).mul(50).long().clamp(-4, 5) + 4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return list(model.parameters()), loss.item()

    (a, reached), (b, wanted) = run(ours.Adafactor), run(torch.optim.Adafactor)
    assert reached == pytest.approx(wanted, rel=1e-4)
    assert max(distances(a, b)) < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_parameters_of_16_bits_learn_with_master_weights(dtype):
    wide, narrow = parameters(), parameters(dtype)
    reached = pull(wide, ours.Adafactor(wide, lr=0.02), 300)
    optimizer = ours.Adafactor(narrow, lr=0.02)
    assert pull(narrow, optimizer, 300) < 1.05 * reached + 1e-3
    for parameter in narrow:
        state = optimizer.state[parameter]
        assert state["master"].dtype is torch.float32 and torch.equal(state["master"].to(dtype), parameter)
        assert all(state[name].dtype is torch.float32 for name in state)
    alone = parameters(dtype)
    optimizer = ours.Adafactor(alone, lr=0.02, master_weights=False)
    assert pull(alone, optimizer, 300) < 1.2 * reached + 1e-2
    assert "master" not in optimizer.state[alone[0]]


def test_layouts_other_than_row_major():
    """channels_last and transposed parameters, with gradients of either layout."""

    def make():
        torch.manual_seed(5)
        last = torch.randn(6, 5, 4, 3).contiguous(memory_format=torch.channels_last)
        return [nn.Parameter(last), nn.Parameter(torch.randn(9, 20).t())]

    a, b = make(), make()
    pull(a, ours.Adafactor(a), 20), pull(b, torch.optim.Adafactor(b), 20)
    assert [p.stride() for p in a] == [p.stride() for p in make()]
    assert max(distances(a, b)) < 1e-5
    narrow = [nn.Parameter(p.detach().bfloat16()) for p in make()]
    optimizer = ours.Adafactor(narrow)
    pull(narrow, optimizer, 5)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    pull(narrow, optimizer, 5)


def test_state_dicts_load_into_torch_and_back():
    a, b = parameters(), parameters()
    options = {"weight_decay": 0.01, "eps": (1e-6, 1e-3)}
    first, second = ours.Adafactor(a, **options), torch.optim.Adafactor(b, **options)
    pull(a, first, 7)
    for mine, theirs in zip(a, b):
        theirs.data.copy_(mine)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    pull(a, first, 7, seed=8), pull(b, second, 7, seed=8)
    assert max(distances(a, b)) < 1e-5
    third = ours.Adafactor(a, lr=0.5)
    for mine, theirs in zip(a, b):
        mine.data.copy_(theirs)
    third.load_state_dict(second.state_dict())
    pull(a, third, 7, seed=9), pull(b, second, 7, seed=9)
    assert max(distances(a, b)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_saved_continues_with_the_same_bits(dtype):
    a = parameters(dtype)
    first = ours.Adafactor(a)
    pull(a, first, 5)
    b = copy.deepcopy(a)
    second = ours.Adafactor(b)
    second.load_state_dict(first.state_dict())  # keeps nothing of it
    pull(a, first, 5, seed=9), pull(b, second, 5, seed=9)
    assert all(torch.equal(x, y) for x, y in zip(a, b))
    for mine, theirs in zip(first.state.values(), second.state.values()):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_bits_with_any_number_of_threads(threads):
    def run():
        params = parameters(shapes=SHAPES | {"large": (900, 1500)})
        pull(params, ours.Adafactor(params), 3)
        return params

    expected = run()
    torch.set_num_threads(threads)
    assert all(torch.equal(x, y) for x, y in zip(expected, run()))


def test_clipping_and_gradients_that_are_not_finite():
    a, b = parameters(), parameters()
    theirs = torch.optim.Adafactor(b)
    theirs.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(b, 0.5) and None)
    mine = ours.Adafactor(a, max_norm=0.5, skip_nonfinite=True)
    pull(a, mine, 20), pull(b, theirs, 20)
    assert max(distances(a, b)) < 1e-5
    before = [p.detach().clone() for p in a]
    a[3].grad[5, 5] = float("inf")
    with pytest.warns(UserWarning, match=r"left out.*shape \(64, 64\)"):
        mine.step()
    assert all(torch.equal(x, y) for x, y in zip(before, a))


def test_a_grad_scaler():
    def run(scale):
        params = parameters()
        optimizer = ours.Adafactor(params)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1)
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(sum(p.square().sum() for p in params)).backward()
            scaler.step(optimizer)
            scaler.update()
        return params

    assert max(distances(run(1024.0), run(1))) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bits_under_a_limit(dtype, disk, eviction):
    """More parameters and master weights than fit; eagerly evicted, states are managed and updates wait."""

    def work():
        torch.manual_seed(4)
        model = nn.Sequential(*[nn.Linear(700, 700) for _ in range(8)], nn.Linear(700, 3001)).to(dtype)
        optimizer = ours.Adafactor(model.parameters(), weight_decay=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 700).to(dtype)).square().mean().backward()
            optimizer.step()
        return fingerprints(training_state(model, optimizer))

    plain = work()
    with bottomless.limit("24MiB", disk) as runtime:
        limited = work()
        counts = runtime.stats()
    assert limited == plain
    check_moved(counts)
    if eviction == "eagerly":
        assert counts["deferred_updates"] > 0, counts


def test_long_vectors_wait(disk):
    """Their states are large enough to be managed."""

    def work():
        torch.manual_seed(4)
        params = [nn.Parameter(torch.randn(500_000)) for _ in range(12)]
        optimizer = ours.Adafactor(params)
        for _ in range(3):
            for parameter in params:
                parameter.grad = torch.cos(parameter.detach())
            optimizer.step()
        return fingerprints({str(i): p for i, p in enumerate(params)})

    plain = work()
    with bottomless.limit("24MiB", disk) as runtime:
        limited = work()
        counts = runtime.stats()
    assert limited == plain
    check_moved(counts)
    assert counts["deferred_updates"] > 0, counts


def test_the_states_of_a_large_matrix_are_small():
    parameter = nn.Parameter(torch.ones(1000, 1000))
    optimizer = ours.Adafactor([parameter])
    parameter.grad = torch.ones(1000, 1000)
    optimizer.step()
    states = {k: v for k, v in optimizer.state[parameter].items() if k != "step"}
    assert {name: tuple(state.shape) for name, state in states.items()} == {"row_var": (1000, 1), "col_var": (1, 1000)}
    assert sum(state.numel() * state.element_size() for state in states.values()) == 8000
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    assert len(saved.getvalue()) < 12_000


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"lr": -1}, "lr"),
        ({"beta2_decay": 0.1}, "beta2_decay"),
        ({"eps": (-1, 1e-3)}, "epsilon1"),
        ({"eps": (None, -1)}, "epsilon2"),
        ({"d": 0.5}, "d: 0.5"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"max_norm": 0}, "max_norm"),
    ],
)
def test_what_makes_no_sense_is_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        ours.Adafactor(parameters(), **options)


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([3])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        ours.Adafactor(embedding.parameters()).step()


def test_an_empty_parameter_is_left_alone():
    empty = nn.Parameter(torch.zeros(0, 5))
    empty.grad = torch.zeros(0, 5)
    ours.Adafactor([empty]).step()
