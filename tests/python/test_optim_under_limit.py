"""What bottomless.optim promises beside plain steps, where next to nothing fits: bits as without a limit, and blocks that moved."""

import warnings

import pytest
import torch
from torch import nn

import bottomless
import bottomless.optim as ours
from helpers import check_moved, fingerprints, training_state

FORMATS = [torch.float32, torch.bfloat16, "8bit"]
LAYERS, WIDTH = 8, 700
LIMIT = "10MiB"  # of 15 MiB of parameters, and half as much or more of states


def network():
    torch.manual_seed(4)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def backward(model):
    model(torch.randn(8, WIDTH)).square().mean().backward()


def bits(model, optimizer):
    """Without gradients: updated in backward, there are none."""
    return {name: value for name, value in fingerprints(training_state(model, optimizer)).items() if "grad" not in name}


@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
@pytest.mark.parametrize("in_backward", [False, 3])
def test_accumulation(state_dtype, in_backward, disk, eviction):
    def work():
        model = network()
        optimizer = ours.AdamW(model.parameters(), state_dtype=state_dtype)
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(3):
                backward(model)
            optimizer.step()
        return bits(model, optimizer)

    plain = work()
    with bottomless.limit(LIMIT, disk, update_in_backward=in_backward) as runtime:
        assert work() == plain
        check_moved(runtime.stats())


@pytest.mark.parametrize("state_dtype", FORMATS, ids=str)
@pytest.mark.parametrize("in_backward", [False, True])
def test_layers_that_freeze_and_thaw_between_steps(state_dtype, in_backward, disk, eviction):
    def work():
        model = network()
        optimizer = ours.AdamW(model.parameters(), state_dtype=state_dtype)
        for step in range(6):
            for at, layer in enumerate(model):
                layer.requires_grad_(at % 3 != step % 3)
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
            assert all((p in optimizer.state) == (step > 0 or p.requires_grad) for p in model.parameters())
        assert {optimizer.state[p]["step"].item() for p in model.parameters()} == {4}
        return bits(model, optimizer)

    plain = work()
    with bottomless.limit(LIMIT, disk, update_in_backward=in_backward) as runtime:
        assert work() == plain
        check_moved(runtime.stats())


def test_what_freezes_after_some_steps_is_not_written_any_more(disk):
    """Nor are its states read; and all of it is again once it thaws."""
    with bottomless.limit(LIMIT, disk) as runtime:
        model = network()
        optimizer = ours.AdamW(model.parameters())

        def step():
            optimizer.zero_grad()
            backward(model)
            optimizer.step()

        def moved(steps):
            before = runtime.stats()
            for _ in range(steps):
                step()
            after = runtime.stats()
            return [(after[key] - before[key]) / steps for key in ("read_bytes", "written_bytes")]

        for _ in range(4):
            step()
        _, written = moved(3)
        model[:-1].requires_grad_(False)
        for _ in range(4):
            step()
        size = sum(parameter.nbytes for parameter in model.parameters())
        frozen_read, frozen_written = moved(3)
        assert written > 2 * size
        # One layer of eight trains: its gradient, parameter and two states; forward reads all parameters.
        assert frozen_written < 6 * size / LAYERS and frozen_read < size + 6 * size / LAYERS
        model.requires_grad_(True)
        for _ in range(4):
            step()
        assert moved(3)[1] > 2 * size


@pytest.mark.parametrize(("state_dtype", "bad"), [(torch.float32, "nan"), (torch.bfloat16, "inf"), ("8bit", "nan")], ids=str)
def test_a_step_that_is_left_out_leaves_every_block_as_it_was(state_dtype, bad, disk, eviction):
    def work(with_bad_steps):
        model = network()
        optimizer = ours.AdamW(model.named_parameters(), state_dtype=state_dtype, skip_nonfinite=True)
        for step in range(5):
            if step in (0, 3) and with_bad_steps:
                generator = torch.get_rng_state()
                optimizer.zero_grad()
                backward(model)
                model[5].weight.grad[3, 5] = float(bad)
                with pytest.warns(UserWarning, match=r"left out.*5\.weight, shape \(700, 700\)"):
                    optimizer.step()
                torch.set_rng_state(generator)
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
        return bits(model, optimizer)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = work(False)
    assert work(True) == plain
    with bottomless.limit(LIMIT, disk) as runtime:
        assert work(True) == plain
        check_moved(runtime.stats())
