"""update_in_backward where gradients accumulate over several backward passes."""

import contextlib
import functools

import pytest
import torch
from torch import nn

import bottomless
import bottomless.optim
from bottomless._update_in_backward import UpdateInBackward
from helpers import fingerprints, training_state
from updating import network


class Branches(nn.Module):
    """Passes take turns: the second branch is used by every other one."""

    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = network(), nn.Linear(5, 24), nn.Linear(5, 24)
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        x = self.trunk(x)
        return self.left(x) if self.passes % 2 else self.right(x)


@pytest.mark.parametrize("make", [torch.optim.AdamW, bottomless.optim.AdamW])
def test_accumulated_gradients_give_the_same_bits(make):
    """Parameters that get a gradient in fewer passes, and a step of fewer passes, are left to step()."""

    def train():
        torch.manual_seed(0)
        model = Branches()
        optimizer = make(model.parameters())
        left = []
        for step in range(8):
            optimizer.zero_grad()
            for _ in range(2 if step == 6 else 4):
                model(torch.randn(6, 8)).square().mean().backward()
            left.append([name for name, parameter in model.named_parameters() if parameter.grad is not None])
            optimizer.step()
        return fingerprints(training_state(model, optimizer)), left

    def without_gradients(bits):
        return {name: value for name, value in bits.items() if not name.endswith(".grad")}

    plain, _ = train()
    with contextlib.closing(UpdateInBackward(passes=4)):
        updated, left = train()
    assert without_gradients(updated) == without_gradients(plain)
    branches = [name for name, _ in Branches().named_parameters() if not name.startswith("trunk")]
    assert left[2] == left[5] == left[7] == branches


def accumulating(optimizer, model, passes):
    optimizer.zero_grad()
    for _ in range(passes):
        model(torch.randn(6, 8)).square().mean().backward()
    optimizer.step()


def test_more_passes_than_were_said_are_refused():
    """At the first step, or later in backward, before a parameter gets a second update."""
    for first, more in ((4, 4), (3, 4)):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        with contextlib.closing(UpdateInBackward(passes=3)), pytest.raises(RuntimeError, match="more than 3 backward passes"):
            for passes in [first] * 3 + [more] * 3:
                accumulating(optimizer, model, passes)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"skip_nonfinite": True}])
def test_an_optimizer_that_must_see_all_gradients_is_refused(options):
    model = network()
    optimizer = bottomless.optim.AdamW(model.parameters(), **options)
    with contextlib.closing(UpdateInBackward()), pytest.raises(RuntimeError, match="must see all"):
        accumulating(optimizer, model, 1)


@pytest.mark.parametrize("passes", [-1, 2.5, "2", None])
def test_what_is_no_number_of_passes_is_refused(passes, disk):
    with pytest.raises(ValueError, match="number of backward passes"):
        bottomless.limit("64MiB", disk, update_in_backward=passes)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("make", [torch.optim.AdamW, bottomless.optim.AdamW])
@pytest.mark.parametrize("passes", [2, 3])
def test_a_pass_that_the_script_drops_does_not_count(passes, make, set_to_none):
    def train():
        torch.manual_seed(0)
        model = network()
        optimizer = make(model.parameters())
        left = []
        for step in range(8):
            optimizer.zero_grad(set_to_none)
            for at in range(passes + (step in (1, 4, 6))):
                model(torch.randn(6, 8)).square().mean().backward()
                if at == 0 and step in (1, 4, 6):
                    optimizer.zero_grad(set_to_none)
            left.append(any(parameter.grad is not None for parameter in model.parameters()))
            optimizer.step()
        optimizer.zero_grad()
        return fingerprints(training_state(model, optimizer)), left

    plain, _ = train()
    with contextlib.closing(UpdateInBackward(passes)):
        updated, left = train()
    assert updated == plain
    assert left == [True, True] + [False] * 6


@pytest.mark.parametrize(
    "make", [torch.optim.AdamW, functools.partial(torch.optim.AdamW, fused=True), bottomless.optim.AdamW]
)
def test_a_weight_that_backward_needs_after_its_update_is_noticed(make):
    """Autograd refuses, as for every write to what it has saved: another gradient would be other bits."""
    weight, before = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    optimizer = make([weight, before])
    with contextlib.closing(UpdateInBackward()), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        for _ in range(3):
            optimizer.zero_grad()
            hidden = before @ weight.detach()
            (hidden.square().sum() + (weight**2).sum()).backward()
            optimizer.step()
