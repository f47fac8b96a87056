"""Nothing is fetched that nobody looks at: by counter, and with the bits that plain PyTorch leaves."""

import pytest
import torch

from helpers import limit, squeeze

COUNT = 1 << 18  # a tensor of 1 MiB
MEMORY = "10MiB"


@pytest.fixture
def runtime(disk, eviction):
    with limit(MEMORY, disk) as runtime:
        yield runtime


def away(count=8):
    tensors = [torch.full((512, 512), float(n)) for n in range(count)]
    squeeze()
    return tensors


def read_by(runtime, work):
    before = runtime.stats()["read_bytes"]
    work()
    return runtime.stats()["read_bytes"] - before


LOOKS_AT_SHAPES = {
    "empty_like": torch.empty_like,
    "new_empty": lambda t: t.new_empty(5),
    "detach": torch.Tensor.detach,
    "view": lambda t: t.view(-1),
    "transpose": lambda t: t.t()[3:7, ::2],
    "expand": lambda t: t[:1].expand(9, 512),
    "size": lambda t: (t.size(), t.stride(), t.numel(), t.is_contiguous(), t.dtype),
    "split": lambda t: t.split(100),
    "zeros_like": torch.zeros_like,
    "full_like": lambda t: torch.full_like(t, 3.0),
    "requires_grad": lambda t: t.requires_grad_().detach_(),
    "data_ptr": torch.Tensor.data_ptr,
}


@pytest.mark.parametrize("name", LOOKS_AT_SHAPES)
def test_operators_that_look_at_shapes_fetch_nothing(name, runtime):
    tensors = away()
    assert read_by(runtime, lambda: [LOOKS_AT_SHAPES[name](tensor) for tensor in tensors]) == 0
    assert [float(tensor[1, 1]) for tensor in tensors] == list(range(8))


OVERWRITES = {
    "zero_": (lambda t: t.zero_(), 0.0),
    "fill_": (lambda t: t.fill_(3), 3.0),
    "copy_": (lambda t: t.copy_(torch.ones(())), 1.0),
    "mul-out": (lambda t: torch.mul(torch.full((512, 512), 2.0), 4.0, out=t), 8.0),
    "mm-out": (lambda t: torch.mm(torch.ones(512, 2), torch.ones(2, 512), out=t), 2.0),
    "slice": (lambda t: t[:].fill_(5), 5.0),
}


@pytest.mark.parametrize("name", OVERWRITES)
def test_what_is_overwritten_is_not_fetched(name, runtime, eviction):
    work, result = OVERWRITES[name]
    tensors = away()
    fetched = read_by(runtime, lambda: [work(tensor) for tensor in tensors])
    # Inputs that a case makes for itself leave at once in eager mode and are fetched again.
    own = 8 * COUNT * 4 + 8 * 64 * 1024 if eviction == "eagerly" and name in ("mul-out", "mm-out", "copy_") else 0
    assert fetched <= own
    squeeze()
    assert all(bool((tensor == result).all()) for tensor in tensors)


def test_a_part_that_is_overwritten_leaves_the_rest(runtime):
    tensors = away()
    for n, tensor in enumerate(tensors):
        tensor[100:300].zero_()
        tensor[:, 7].fill_(-1)
    squeeze()
    for n, tensor in enumerate(tensors):
        expected = torch.full((512, 512), float(n))
        expected[100:300] = 0
        expected[:, 7] = -1
        assert torch.equal(tensor, expected)


FAILING = {
    "shape": lambda t: t.copy_(torch.ones(7)),
    "type": lambda t: torch.mul(torch.ones(512, 512, dtype=torch.complex64), 2, out=t),
    "mm": lambda t: torch.mm(torch.ones(512, 2), torch.ones(3, 512), out=t),
    "argument": lambda t: t.normal_(0, -1),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_operator_that_fails_overwrites_nothing(name, runtime):
    tensors = away()
    for tensor in tensors:
        with pytest.raises(RuntimeError):
            FAILING[name](tensor)
    squeeze()
    assert all(bool((tensor == n).all()) for n, tensor in enumerate(tensors))


def test_overlapping_copies(runtime):
    tensors = [torch.arange(float(COUNT)) for _ in range(8)]
    squeeze()
    for tensor in tensors:
        tensor[: COUNT // 2].copy_(tensor[COUNT // 2 :])
        torch.add(tensor, 1, out=tensor)
    squeeze()
    expected = torch.arange(float(COUNT))
    expected[: COUNT // 2] = expected[COUNT // 2 :].clone()
    assert all(torch.equal(tensor, expected + 1) for tensor in tensors)


def test_gradients_set_to_zero_are_not_fetched(runtime):
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(8)))
    model(torch.randn(4, 512)).sum().backward()
    squeeze()
    assert read_by(runtime, lambda: model.zero_grad(set_to_none=False)) == 0
    assert all(not parameter.grad.any() for parameter in model.parameters())
