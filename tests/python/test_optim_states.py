"""bottomless.optim: states that a script changes, saves and loads, and what autograd learns of an update."""

import copy
import gc
import io

import pytest
import torch
from torch import nn

import bottomless
import bottomless.optim as ours
from helpers import fingerprints, training_state

FORMATS = [torch.float32, torch.bfloat16, "8bit"]


def network(dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(37, 64), nn.Tanh(), nn.Linear(64, 19)).to(dtype)


def train(model, optimizer, steps, seed=2):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 37, generator=generator).to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def with_gradient(tensor, value=1.0):
    parameter = nn.Parameter(tensor)
    parameter.grad = torch.full_like(parameter, value)
    return parameter


# --- momentum that begins later ---


@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
@pytest.mark.parametrize("loaded", [False, True])
def test_momentum_that_begins_later_begins_as_in_torch(loaded, state_dtype):
    results = []
    for make in (lambda it: ours.SGD(it, lr=0.1, state_dtype=state_dtype), lambda it: torch.optim.SGD(it, lr=0.1)):
        parameter = with_gradient(torch.zeros(300))
        optimizer = make([parameter])
        optimizer.step()
        if loaded:
            saved = torch.optim.SGD([parameter], lr=0.1).state_dict()
            saved["state"] = {0: {"momentum_buffer": None}}
            optimizer.load_state_dict(saved)
        optimizer.param_groups[0].update(momentum=0.5, dampening=0.25)
        for _ in range(3):
            optimizer.step()
        results.append(parameter.detach())
    assert torch.allclose(*results, rtol=1e-2 if state_dtype != torch.float32 else 1e-6)


# --- autograd ---


@pytest.mark.parametrize("make", [ours.AdamW, ours.Adafactor])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_autograd_notices_an_update(make, layout):
    parameter = with_gradient(torch.ones(4, 5, 3, 2).contiguous(memory_format=layout))
    loss = parameter.square().sum()
    make([parameter]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_notices_an_update_of_rows():
    parameter = nn.Parameter(torch.ones(10, 4))
    parameter.grad = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.ones(2, 4), parameter.shape)
    loss = parameter.square().sum()
    ours.Adam([parameter]).step()
    assert parameter._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- master weights ---


@pytest.mark.parametrize("make", [ours.AdamW, ours.SGD, ours.Adafactor])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_a_script_writes_to_a_parameter_stays(make, dtype):
    parameter = with_gradient(torch.ones(300, dtype=dtype))
    optimizer = make([parameter], lr=1e-3, weight_decay=0)
    optimizer.step()
    with torch.no_grad():
        parameter.fill_(5)
    optimizer.param_groups[0]["lr"] = 0.0  # moments go on without a gradient
    parameter.grad.zero_()
    optimizer.step()
    assert torch.equal(parameter, torch.full_like(parameter, 5))


def test_a_write_between_steps_reaches_the_master_weights():
    parameter = with_gradient(torch.ones(300, dtype=torch.bfloat16))
    optimizer = ours.SGD([parameter], lr=1e-3)
    optimizer.step()
    master = optimizer.state[parameter]["master"]
    assert not torch.equal(master, master.to(torch.bfloat16).float())
    with torch.no_grad():
        parameter.add_(0)  # writes what is there: the master weights keep their finer value
    optimizer.step()
    assert torch.allclose(master, torch.tensor(1 - 2e-3), rtol=1e-6)
    with torch.no_grad():
        parameter.fill_(5)
    optimizer.step()
    assert torch.allclose(master, torch.tensor(5 - 1e-3), rtol=1e-6)


@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("make", [ours.AdamW, ours.Adafactor])
def test_resuming_with_master_weights_continues_with_the_same_bits(make, model_first):
    model = network(torch.bfloat16)
    optimizer = make(model.parameters(), lr=1e-3)
    train(model, optimizer, 5)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 5, seed=9)
    other = nn.Sequential(nn.Linear(37, 64), nn.Tanh(), nn.Linear(64, 19)).bfloat16()
    resumed = make(other.parameters(), lr=1e-3)
    train(other, resumed, 1)
    if model_first:
        other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    if not model_first:
        other.load_state_dict(saved[0])
    train(other, resumed, 5, seed=9)
    assert fingerprints(training_state(other, resumed)) == fingerprints(training_state(model, optimizer))


def test_weights_loaded_after_the_optimizers_state_win():
    model, other = network(torch.bfloat16), network(torch.bfloat16)
    optimizer = ours.SGD(model.parameters(), lr=1e-3)
    train(model, optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(2)
    model.load_state_dict(other.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(torch.equal(parameter, torch.full_like(parameter, 2)) for parameter in model.parameters())


# --- what is refused ---


@pytest.mark.parametrize("option", ["amsgrad", "capturable", "differentiable"])
def test_unknown_options_are_refused_in_groups_and_saved_states(option):
    model = network()
    with pytest.raises(ValueError, match=option):
        ours.Adam([{"params": model.parameters(), option: True}])
    optimizer = ours.Adam(model[0].parameters())
    with pytest.raises(ValueError, match=option):
        optimizer.add_param_group({"params": model[2].parameters(), option: True})
    assert len(optimizer.param_groups) == 1
    train(model, optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0].update({option: True, "lr": 9.0})
    before = fingerprints(training_state(model, optimizer))
    with pytest.raises(ValueError, match=option):
        optimizer.load_state_dict(saved)
    assert fingerprints(training_state(model, optimizer)) == before and optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize("make", [ours.AdamW, ours.Adafactor])
def test_a_state_of_another_shape_is_refused_before_anything_changes(make):
    model, other = network(), nn.Sequential(nn.Linear(37, 64), nn.Tanh(), nn.Linear(1, 19))
    optimizer, theirs = make(model.parameters(), lr=0.1), make(other.parameters(), lr=0.2)
    train(model, optimizer, 2)
    for parameter in other.parameters():
        parameter.grad = torch.ones_like(parameter)
    theirs.step()
    before = fingerprints(training_state(model, optimizer))
    with pytest.raises(ValueError, match=r"shape \(64, 37\)|shape \(19, 64\)"):
        optimizer.load_state_dict(theirs.state_dict())
    assert fingerprints(training_state(model, optimizer)) == before and optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("sparse_dims", [2, 3])
def test_sparse_gradients_of_other_dimensions_are_refused(sparse_dims):
    good, parameter = with_gradient(torch.zeros(3)), nn.Parameter(torch.zeros(4, 5, 6))
    parameter.grad = torch.ones(4, 5, 6).to_sparse(sparse_dims)
    optimizer = ours.SGD([good, parameter])
    with pytest.raises(ValueError, match="sparse dimensions"):
        optimizer.step()
    assert torch.equal(good.detach(), torch.zeros(3)) and not optimizer.state


@pytest.mark.parametrize("make", [ours.AdamW, ours.Adafactor])
def test_an_update_that_fails_is_not_counted(make):
    parameter = with_gradient(torch.zeros(6, 4))
    optimizer = make([parameter])
    optimizer.step()
    optimizer.param_groups[0]["weight_decay"] = "much"
    with pytest.raises(RuntimeError, match="weight_decay"):
        optimizer.step()
    assert optimizer.state[parameter]["step"] == 1


# --- saved and loaded ---


@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_optimizer_saved_as_a_whole_continues_with_the_same_bits(dtype, state_dtype):
    model = network(dtype)
    optimizer = ours.AdamW(model.parameters(), lr=1e-3, state_dtype=state_dtype)
    train(model, optimizer, 3)
    file = io.BytesIO()
    torch.save((model, optimizer), file)
    file.seek(0)
    other, loaded = torch.load(file, weights_only=False)
    train(model, optimizer, 3, seed=9), train(other, loaded, 3, seed=9)
    assert fingerprints(training_state(other, loaded)) == fingerprints(training_state(model, optimizer))
    if state_dtype == "8bit":
        state = loaded.state[other[0].weight]
        assert state["exp_avg"].untyped_storage().data_ptr() == state["exp_avg_scales"].untyped_storage().data_ptr()


def test_saved_groups_that_lack_options_get_the_defaults():
    model = network()
    optimizer = ours.AdamW(model.parameters(), lr=1e-3, weight_decay=0.5)
    train(model, optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    for name in ("maximize", "weight_decay", "decoupled_weight_decay"):
        del saved["param_groups"][0][name]
    optimizer.load_state_dict(saved)
    train(model, optimizer, 1)
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
def test_saved_states_are_of_float32(state_dtype):
    model = network()
    optimizer = ours.AdamW(model.parameters(), state_dtype=state_dtype)
    train(model, optimizer, 2)
    for state in optimizer.state_dict()["state"].values():
        assert {value.dtype for value in state.values()} == {torch.float32}


# --- the rest ---


def test_hooks_go_with_their_optimizer():
    model = network()
    optimizer = ours.AdamW(model.parameters(), max_norm=1.0)
    train(model, optimizer, 2)
    assert all(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    del optimizer
    gc.collect()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_the_package_has_it_without_another_import():
    assert bottomless.optim is ours and "optim" in bottomless.__all__
