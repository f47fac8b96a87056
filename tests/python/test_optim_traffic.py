"""What a step of bottomless.optim moves: bytes read and written for each parameter, by counters, where next to nothing fits."""

import pytest
import torch
from torch import nn

import bottomless
import bottomless.optim as ours
from helpers import MIB

LAYERS, WIDTH = 24, 1024
MEMORY = 24 * MIB
STATES = {torch.float32: 16, torch.bfloat16: 8, "8bit": 4 + 16 / 256}  # read and written, of AdamW


def deep_network():
    """96 MiB of parameters, activations of next to nothing."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def bytes_per_parameter(runtime, step, parameters, warm_up=4, steps=3):
    """Of a step, once it is planned: read and written."""
    for _ in range(warm_up):
        step()
    before = runtime.stats()
    for _ in range(steps):
        step()
    after = runtime.stats()
    count = sum(parameter.numel() for parameter in parameters)
    return [(after[key] - before[key]) / steps / count for key in ("read_bytes", "written_bytes")]


def moved(disk, memory=MEMORY, model=deep_network, passes=1, update_in_backward=False, **options):
    with bottomless.limit(memory, disk, update_in_backward=update_in_backward) as runtime:
        network = model()
        optimizer = ours.AdamW((p for p in network.parameters() if p.requires_grad), lr=1e-4, **options)

        def step():
            optimizer.zero_grad()
            for _ in range(passes):
                network(torch.ones(8, WIDTH)).mean().backward()
            optimizer.step()

        return bytes_per_parameter(runtime, step, network.parameters())


def moved_by_steps_alone(disk, memory, **options):
    """Of steps one after the other with the same gradients, each done when it is asked for."""
    with bottomless.limit(memory, disk, deferred_updates=False) as runtime:
        parameters = [nn.Parameter(torch.zeros(WIDTH, WIDTH)) for _ in range(LAYERS // 2)]
        for parameter in parameters:
            parameter.grad = torch.ones(WIDTH, WIDTH)
        optimizer = ours.AdamW(parameters, lr=1e-4, **options)
        return bytes_per_parameter(runtime, optimizer.step, parameters, warm_up=2, steps=2)


@pytest.mark.parametrize("state_dtype", STATES, ids=str)
def test_a_step_moves_each_byte_that_it_needs_once(disk, state_dtype):
    """28 bytes of a parameter with float32 states, 20 with bfloat16, 16 and scales with 8 bits: a step reads parameter,
    gradient and states and writes all but the gradient. What it leaves in memory is the end of the parameters, and the next
    begins with the first, so that nothing of it is of use."""
    read, written = moved_by_steps_alone(disk, "8MiB", state_dtype=state_dtype)
    states = STATES[state_dtype]
    assert read == pytest.approx(8 + states / 2, rel=0.01)
    assert written == pytest.approx(4 + states / 2, rel=0.01)
    assert read + written == pytest.approx(12 + states, rel=0.01)


@pytest.mark.parametrize("state_dtype", STATES, ids=str)
def test_update_in_backward_moves_parameters_and_states_only(disk, state_dtype):
    """A parameter is read for forward and for backward, and written. Where forward and backward meet and where steps do,
    all that memory holds may be what is wanted next; nothing that is written is saved by that."""
    read, written = moved(disk, state_dtype=state_dtype, update_in_backward=True)
    states = STATES[state_dtype]
    kept = 2 * MEMORY / (LAYERS * WIDTH * WIDTH)
    assert 8 + states / 2 - kept < read < 1.02 * (8 + states / 2)
    assert written == pytest.approx(4 + states / 2, rel=0.02)


def test_what_fits_is_not_moved(disk):
    for state_dtype in STATES:
        assert moved(disk, "1GiB", state_dtype=state_dtype) == [0, 0]
        assert moved_by_steps_alone(disk, "1GiB", state_dtype=state_dtype) == [0, 0]


@pytest.mark.parametrize("max_norm", [1e-9, 1e9])
def test_clipping_reads_no_gradient_for_its_norm(disk, max_norm):
    """Read twice, for the norm and for the update, a gradient would be 4 bytes more."""
    read, written = moved(disk)
    clipped_read, clipped_written = moved(disk, max_norm=max_norm)
    assert clipped_read < read + 0.5 and clipped_written < written + 0.5


def test_frozen_parameters_are_never_written(disk):
    def half_frozen():
        network = deep_network()
        network[: LAYERS // 2].requires_grad_(False)
        return network

    read, written = moved(disk, model=half_frozen, update_in_backward=True)
    assert written < 1.02 * 12 / 2
    # Nothing before the first parameter that trains is read in backward.
    assert read < 1.02 * (4 + 16) / 2


def test_accumulated_gradients_are_updated_in_the_last_backward(disk):
    read, written = moved(disk, passes=2, update_in_backward=2)
    # For each pass 8 bytes of a parameter; the gradient once written and once read; the update.
    assert read < 1.02 * (16 + 4 + 8) and written < 1.02 * (4 + 12)


@pytest.mark.parametrize("state_dtype", STATES, ids=str)
def test_sparse_gradients_move_their_rows_only(disk, state_dtype):
    """Of a weight of 156 MiB and its states, pieces of 256 KiB around a few rows, others in every step."""
    with bottomless.limit("24MiB", disk) as runtime:
        weight = nn.Parameter(torch.zeros(160_000, 256))
        optimizer = ours.Adam([weight], state_dtype=state_dtype)
        touched = []
        for step in range(3):
            before = runtime.stats()
            rows = [at + 6_000 * step for at in (5, 6, 7, 40_000, 140_000)]
            weight.grad = torch.sparse_coo_tensor(torch.tensor([rows]), torch.ones(5, 256), weight.shape)
            optimizer.step()
            touched += rows
        after = runtime.stats()
        parts = [part.any(dim=1) for part in weight.detach().split(5_000)]
        changed = torch.cat(parts).nonzero().flatten().tolist()
    assert changed == sorted(touched)
    assert after["evictions"] > 0
    # Three places in three arrays are 2.25 MiB. Formats do not differ: a row is smaller than a piece in all of them.
    assert 1 * MIB < after["read_bytes"] - before["read_bytes"] < 4.5 * MIB
    assert after["written_bytes"] - before["written_bytes"] < 5.5 * MIB
