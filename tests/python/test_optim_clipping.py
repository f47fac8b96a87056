"""Clipping inside bottomless.optim: exact, also where backward has summed the squares and somebody changes a gradient since."""

import copy
import pickle

import numpy
import pytest
import torch
from torch import nn

import bottomless
import bottomless.optim as ours
from helpers import check_moved, fingerprints, training_state


def halve_through_data(parameters):
    for parameter in parameters:
        parameter.grad.data.mul_(0.5)


def halve_through_numpy(parameters):
    for parameter in parameters:
        array = parameter.grad.numpy()
        numpy.multiply(array, numpy.float32(0.5), out=array)


def replace(parameters):
    for parameter in parameters:
        parameter.grad = parameter.grad * 0.25


def clip_as_well(parameters):
    nn.utils.clip_grad_norm_(parameters, 1e-3)


def one_element(parameters):
    parameters[2].grad.view(-1)[-1] = 3.0


CHANGES = {change.__name__: change for change in (halve_through_data, halve_through_numpy, replace, clip_as_well, one_element)}


def work(max_norm, change=lambda parameters: None, passes=1, **options):
    torch.manual_seed(4)
    model = nn.Sequential(*[nn.Linear(700, 700) for _ in range(6)], nn.Linear(700, 3001))
    optimizer = ours.AdamW(model.parameters(), max_norm=max_norm, **options)
    for _ in range(5):
        optimizer.zero_grad()
        for _ in range(passes):
            model(torch.randn(8, 700)).square().mean().backward()
        change(list(model.parameters()))
        optimizer.step()
    return fingerprints(training_state(model, optimizer))


@pytest.mark.parametrize("state_dtype", [torch.float32, "8bit"], ids=str)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("max_norm", [1e-4, 1e9])
def test_the_same_bits_under_a_limit(max_norm, passes, state_dtype, disk, eviction):
    plain = work(max_norm, passes=passes, state_dtype=state_dtype)
    with bottomless.limit("24MiB", disk) as runtime:
        assert work(max_norm, passes=passes, state_dtype=state_dtype) == plain
        check_moved(runtime.stats())


def test_it_matters_whether_it_clips():
    assert work(1e-4) != work(1e9) == work(None)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("max_norm", [1e-4, 1e9])
def test_a_gradient_that_changes_after_backward_has_another_norm(max_norm, change, disk):
    plain = work(max_norm, CHANGES[change])
    assert plain != work(max_norm) or change == "clip_as_well"
    with bottomless.limit("24MiB", disk) as runtime:
        assert work(max_norm, CHANGES[change]) == plain
        check_moved(runtime.stats())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["deepcopy", "pickle"])
def test_a_copy_clips_and_has_the_same_formats(again):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(300, 5))]
    optimizer = ours.Adam(parameters, max_norm=0.1, skip_nonfinite=True, state_dtype="8bit")
    parameters[0].grad = torch.randn(300, 5)
    optimizer.step()
    other = again(optimizer)
    copied = other.param_groups[0]["params"][0]
    assert torch.equal(copied, parameters[0])
    for one, its in ((optimizer, parameters[0]), (other, copied)):
        its.grad = torch.full_like(its, 5.0)
        one.step()
    assert torch.equal(copied, parameters[0])
    assert other.state[copied]["exp_avg"].dtype is torch.int8
    copied.grad[0, 0] = float("inf")
    before = copied.detach().clone()
    with pytest.warns(UserWarning, match="left out"):
        other.step()
    assert torch.equal(copied, before)


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_does_what_it_does_to_torch(bad):
    both = [nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))]
    for parameter in both:
        parameter.grad = torch.tensor([1.0, bad, 2.0, 3.0, 4.0])
    ours.SGD(both[:1], lr=0.1, max_norm=1.0).step()
    nn.utils.clip_grad_norm_(both[1:], 1.0)
    torch.optim.SGD(both[1:], lr=0.1).step()
    assert torch.equal(both[0].isnan(), both[1].isnan()) and both[0].isnan().any()
