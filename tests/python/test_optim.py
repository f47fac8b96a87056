"""bottomless.optim beside torch.optim: the same numbers, the same state_dict, the same bits with and without a limit."""

import copy
import functools
import time

import pytest
import torch
from torch import nn

import bottomless
import bottomless.optim as ours
from helpers import fingerprints, training_state

STEPS = 300
PAIRS = {
    "adam": (ours.Adam, torch.optim.Adam, {"weight_decay": 0.01}),
    "adam_maximize": (ours.Adam, torch.optim.Adam, {"maximize": True, "betas": (0.8, 0.95)}),
    "adamw": (ours.AdamW, torch.optim.AdamW, {"weight_decay": 0.1, "eps": 1e-6}),
    "sgd": (ours.SGD, torch.optim.SGD, {"weight_decay": 0.01}),
    "sgd_momentum": (ours.SGD, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "maximize": True}),
    "sgd_nesterov": (ours.SGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adagrad": (ours.Adagrad, torch.optim.Adagrad, {"lr_decay": 0.01, "initial_accumulator_value": 0.1}),
}
ALL = {name: functools.partial(mine, **options) for name, (mine, _, options) in PAIRS.items()} | {"lion": ours.Lion}
FORMATS = [torch.float32, torch.bfloat16, "8bit"]


def network(dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(37, 64), nn.Tanh(), nn.Linear(64, 19)).to(dtype)


def train(model, optimizer, steps=STEPS, seed=2):
    """Towards a fixed linear map; returns the loss at the end, a mean over 20 steps."""
    losses = []
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(37, 19, generator=torch.Generator().manual_seed(3)) / 6
    for _ in range(steps):
        x = torch.randn(16, 37, generator=generator)
        dtype = next(model.parameters()).dtype
        loss = (model(x.to(dtype)).float() - x @ target).square().mean()
        optimizer.zero_grad()
        (-loss if optimizer.param_groups[0]["maximize"] else loss).backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / len(losses[-20:])


def distance(a, b):
    both = [(x.detach().float(), y.detach().float()) for x, y in zip(a.parameters(), b.parameters())]
    return max(((x - y).norm() / y.norm()).item() for x, y in both)


@pytest.mark.parametrize("name", PAIRS)
def test_hundreds_of_steps_end_where_torch_does(name):
    mine, theirs, options = PAIRS[name]
    a, b = network(), network()
    assert train(a, mine(a.parameters(), lr=1e-3, **options)) == pytest.approx(
        train(b, theirs(b.parameters(), lr=1e-3, **options)), rel=1e-4
    )
    assert distance(a, b) < 1e-5


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_format_learns(name, state_dtype, dtype):
    """Narrow states and parameters reach the loss of wide ones, or nearly: within a tenth of the way there."""
    untrained, wide, narrow = network(), network(), network(dtype)
    rate = 0.1 if "sgd" in name or "adagrad" in name else 3e-3
    start = train(untrained, ours.SGD(untrained.parameters(), lr=0), 20)
    reached = train(wide, ALL[name](wide.parameters(), lr=rate))
    assert reached < 0.5 * start
    optimizer = ALL[name](narrow.parameters(), lr=rate, state_dtype=state_dtype)
    assert train(narrow, optimizer) < reached + 0.1 * (start - reached)
    for parameter in narrow.parameters():
        state = optimizer.state[parameter]
        assert ("master" in state) == (dtype is not torch.float32)
        if "master" in state:
            assert torch.equal(state["master"].to(dtype), parameter)


@pytest.mark.parametrize("name", PAIRS)
def test_state_dicts_load_into_torch_and_back(name):
    mine, theirs, options = PAIRS[name]
    if name == "adam_maximize":
        options = {**options, "foreach": False}
    a, b = network(), network()
    first, second = mine(a.parameters(), lr=1e-3, **options), theirs(b.parameters(), lr=1e-3, **options)
    train(a, first, 7)
    b.load_state_dict(a.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(a, first, 7), train(b, second, 7)
    assert distance(a, b) < 1e-5
    third = mine(a.parameters(), lr=0.5)
    a.load_state_dict(b.state_dict())
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    train(a, third, 7), train(b, second, 7)
    assert distance(a, b) < 1e-5


@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_saved_continues_with_the_same_bits(state_dtype, dtype):
    a = network(dtype)
    first = ours.AdamW(a.parameters(), lr=1e-2, state_dtype=state_dtype)
    train(a, first, 5)
    b = copy.deepcopy(a)
    second = ours.AdamW(b.parameters(), lr=1e-2, state_dtype=state_dtype)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(a, first, 5, seed=9), train(b, second, 5, seed=9)
    assert fingerprints(training_state(a, first)) == fingerprints(training_state(b, second))


@pytest.mark.parametrize("max_norm", [0.05, 1e9])
def test_clipping_is_that_of_torch(max_norm):
    a, b = network(), network()
    theirs = torch.optim.AdamW(b.parameters(), lr=1e-3, eps=1e-3)
    theirs.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(b.parameters(), max_norm) and None)
    train(a, ours.AdamW(a.parameters(), lr=1e-3, eps=1e-3, max_norm=max_norm), 50)
    train(b, theirs, 50)
    assert distance(a, b) < 1e-5


def test_gradients_that_are_not_finite_leave_a_step_out():
    model = network()
    optimizer = ours.AdamW(model.named_parameters(), lr=1e-3, skip_nonfinite=True)
    train(model, optimizer, 3)
    before = fingerprints(training_state(model, optimizer))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[2].bias.grad[5] = float("nan")
    with pytest.warns(UserWarning, match=r"left out.*2\.bias, shape \(19,\)"):
        optimizer.step()
    model.zero_grad()
    after = fingerprints(training_state(model, optimizer))
    assert {k: v for k, v in before.items() if "grad" not in k} == {k: v for k, v in after.items() if "grad" not in k}


@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler(unscale):
    """As with torch's own: gradients come scaled, infinities leave the step out and lower the scale."""

    def run(make):
        model = network()
        optimizer = make(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
        scales = []
        for step in range(12):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 37)).square().mean() * (float("inf") if step == 6 else 1)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return model, scales

    theirs, their_scales = run(functools.partial(torch.optim.AdamW, fused=True))
    with pytest.warns(UserWarning, match="left out"):
        mine, my_scales = run(ours.AdamW)
    assert my_scales == their_scales and distance(mine, theirs) < 1e-5


def test_parameters_freeze_and_thaw():
    model = network()
    optimizer = ours.AdamW(model.parameters(), lr=1e-3)
    model[0].requires_grad_(False)
    frozen = fingerprints(dict(model[0].named_parameters()))
    train(model, optimizer, 5)
    assert fingerprints(dict(model[0].named_parameters())) == frozen
    assert not any(parameter in optimizer.state for parameter in model[0].parameters())
    model[0].requires_grad_(True)
    train(model, optimizer, 5)
    assert fingerprints(dict(model[0].named_parameters())) != frozen
    assert optimizer.state[model[0].weight]["step"] == 5 and optimizer.state[model[2].weight]["step"] == 10


@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
def test_sparse_gradients_touch_their_rows(state_dtype):
    torch.manual_seed(0)
    embedding = nn.Embedding(1000, 256, sparse=True)
    before = embedding.weight.detach().clone()
    optimizer = ours.Adam(embedding.parameters(), lr=1e-2, state_dtype=state_dtype)
    embedding(torch.tensor([3, 4, 5, 700, 3])).sum().backward()
    optimizer.step()
    changed = (embedding.weight != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == [3, 4, 5, 700]
    if state_dtype is torch.float32:
        other = nn.Embedding(1000, 256, sparse=True)
        other.weight.data.copy_(before)
        other(torch.tensor([3, 4, 5, 700, 3])).sum().backward()
        torch.optim.SparseAdam(other.parameters(), lr=1e-2).step()
        assert distance(embedding, other) < 1e-6


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
def test_the_same_bits_under_a_limit(name, state_dtype, disk):
    """More states and parameters than fit, tensors that are cut, updates that wait."""

    def work():
        torch.manual_seed(4)
        model = nn.Sequential(*[nn.Linear(700, 700) for _ in range(6)], nn.Linear(700, 3001))
        optimizer = ALL[name](model.parameters(), state_dtype=state_dtype)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 700)).square().mean().backward()
            optimizer.step()
        return fingerprints(training_state(model, optimizer))

    plain = work()
    with bottomless.limit("24MiB", disk) as runtime:
        limited = work()
        counts = runtime.stats()
    assert limited == plain
    assert counts["evictions"] > 0 and counts["deferred_updates"] > 0, counts


@pytest.mark.parametrize("make", [*ALL.values(), ours.Adafactor])
def test_threads_share_the_work_and_change_no_bit(make):
    def work(threads):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        parameter = nn.Parameter(torch.randn(1 << 20))
        optimizer = make([parameter], max_norm=1.0)
        for _ in range(3):
            parameter.grad = torch.randn(1 << 20)
            optimizer.step()
        return parameter.detach()

    try:
        assert torch.equal(work(1), work(2))
    finally:
        torch.set_num_threads(2)


def test_an_update_uses_torchs_threads():
    """A template of torch's does so only where it was compiled for that: judged by the kernel's clock for this process."""
    parameter = nn.Parameter(torch.zeros(1 << 25))
    parameter.grad = torch.ones(1 << 25)
    optimizer = ours.AdamW([parameter], state_dtype="8bit")
    optimizer.step()
    begin = time.process_time(), time.thread_time()
    for _ in range(5):
        optimizer.step()
    process, thread = time.process_time() - begin[0], time.thread_time() - begin[1]
    assert process > 1.5 * thread


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"state_dtype": torch.float16}, "state_dtype"),
        ({"amsgrad": True}, "amsgrad"),
        ({"max_norm": 0}, "max_norm"),
        ({"lr": -1}, "lr"),
        ({"betas": (1, 0.9)}, "betas"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        ours.AdamW(network().parameters(), **options)


def sparse_rows(width):
    weight = nn.Parameter(torch.zeros(10, width))
    weight.grad = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.ones(2, width), weight.shape)
    return weight


def with_gradient(tensor):
    parameter = nn.Parameter(tensor)
    parameter.grad = torch.ones_like(parameter)
    return parameter


@pytest.mark.parametrize(
    ("parameter", "reason"),
    [
        (with_gradient(torch.zeros(4, dtype=torch.float64)), "float64"),
        (with_gradient(torch.zeros(4, 6)[:, ::2]), "dense"),
        (sparse_rows(10), "multiple of 256"),
    ],
)
def test_parameters_that_are_not_known_are_refused_before_anything_changes(parameter, reason):
    good = with_gradient(torch.zeros(3))
    optimizer = ours.AdamW([good, parameter], state_dtype="8bit")
    with pytest.raises((TypeError, ValueError), match=reason):
        optimizer.step()
    assert torch.equal(good.detach(), torch.zeros(3)) and not optimizer.state
