"""All kinds of operators, not only those of training, on tensors of which a few fill the limit."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers import same_under_limit

SIDE = 512  # a matrix of 1 MiB
MEMORY = "10MiB"


def matrices(count=12):
    return [torch.randn(SIDE, SIDE) for _ in range(count)]


def in_place_and_views():
    tensors = matrices()
    for i, (a, b) in enumerate(itertools.pairwise(tensors)):
        a[::2, 1:] += b[1::2, :-1]
        a.t()[3:9].mul_(2)
        a.view(-1)[i::7] = b.view(-1)[i::7]
        a[b > 2] = 0
        a.narrow(0, 5, 100).copy_(b.narrow(1, 9, SIDE - 9)[:100, :1].expand(100, SIDE))
        b.unsqueeze_(0).transpose_(0, 1).squeeze_(1)
        a.diagonal().fill_(i)
        a.unfold(0, 4, 4)[..., 0].sub_(1)
    return dict(enumerate(tensors))


def views_keep_a_storage_alive():
    tails = [tensor[-3:, ::5] for tensor in matrices(16)]
    return {"tails": torch.stack(tails), "sum": sum(tail.sum() for tail in tails)}


def indexing():
    results = []
    for matrix in matrices(14):
        order = matrix[:, 0].argsort()
        rows = matrix[order]
        picked = rows.gather(1, torch.randint(SIDE, (SIDE, SIDE)))
        picked.scatter_add_(0, torch.randint(SIDE, (SIDE, SIDE)), matrix)
        picked.index_put_((order[:9],), matrix[:9], accumulate=True)
        picked.masked_scatter_(matrix > 1, rows)
        results.append(torch.cat([picked, rows.take_along_dim(order[:, None], 0)], dim=1))
    return dict(enumerate(results))


def reductions_and_sorting():
    results = {}
    for i, matrix in enumerate(matrices(14)):
        values, order = matrix.sort(dim=1)
        results |= {
            f"{i}-sorted": values, f"{i}-order": order, f"{i}-cumsum": matrix.cumsum(0), f"{i}-norm": matrix.norm(),
            f"{i}-max": matrix.max(dim=0).values, f"{i}-top": matrix.topk(5).indices, f"{i}-var": matrix.var(1),
            f"{i}-unique": (matrix * 9).int().unique(), f"{i}-where": torch.nonzero(matrix > 2), f"{i}-lse": matrix.logsumexp(1),
            f"{i}-histogram": matrix.histc(50), f"{i}-mode": matrix.round().mode(1).values, f"{i}-median": matrix.median(),
        }  # fmt: skip
    return results


def linear_algebra():
    results = {}
    for i, matrix in enumerate(matrices(8)):
        positive = matrix @ matrix.T + SIDE * torch.eye(SIDE)
        results |= {
            f"{i}-cholesky": torch.linalg.cholesky(positive), f"{i}-inverse": torch.linalg.inv(positive),
            f"{i}-solve": torch.linalg.solve(positive, matrix[:, :3]), f"{i}-qr": torch.linalg.qr(matrix).R,
            f"{i}-einsum": torch.einsum("ij,jk,ik->i", matrix, positive, matrix), f"{i}-det": torch.logdet(positive),
            f"{i}-addmm": torch.addmm(matrix, matrix, positive, beta=0.5), f"{i}-baddbmm": torch.bmm(matrix[None], matrix.T[None]),
        }  # fmt: skip
    return results


def complex_numbers_and_transforms():
    results = {}
    for i, (a, b) in enumerate(itertools.pairwise(matrices(8))):
        spectrum = torch.fft.rfft2(a)
        results[f"{i}-real"] = torch.view_as_real(spectrum.conj() * spectrum.exp().conj_physical())
        results[f"{i}-back"] = torch.fft.irfft2(spectrum, s=(SIDE, SIDE))
        results[f"{i}-product"] = torch.view_as_real(torch.complex(a, b) @ torch.complex(b, a).mH)
    return results


def convolutions_and_norms():
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, groups=4),
        nn.GroupNorm(4, 32), nn.SiLU(), nn.ConvTranspose2d(32, 8, 4, stride=2), nn.InstanceNorm2d(8), nn.PReLU(),
        nn.AdaptiveAvgPool2d(9), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(8, 4, 3, padding_mode="reflect", padding=2),
    )  # fmt: skip
    inputs = torch.randn(4, 3, 96, 96, requires_grad=True)
    model(inputs).square().mean().backward()
    return {**model.state_dict(), **{f"{k}.grad": v.grad for k, v in model.named_parameters()}, "inputs": inputs.grad}


def recurrent_networks():
    results = {}
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        network = kind(192, 256, num_layers=2, bidirectional=True, dropout=0.2)
        packed = nn.utils.rnn.pack_sequence([torch.randn(n, 192) for n in (40, 31, 7)], enforce_sorted=False)
        output, _ = nn.utils.rnn.pad_packed_sequence(network(packed)[0])
        output.square().sum().backward()
        results |= {f"{kind.__name__}-{name}": p.grad for name, p in network.named_parameters()}
        results[kind.__name__] = output
    return results


def attention():
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = nn.TransformerEncoder(layer, 4)
    inputs = torch.randn(3, 96, 256, requires_grad=True)
    mask = nn.Transformer.generate_square_subsequent_mask(96)
    model(inputs, mask=mask, is_causal=True).square().mean().backward()
    model.eval()
    with torch.no_grad():
        fast = model(inputs)
    return {**{name: p.grad for name, p in model.named_parameters()}, "inputs": inputs.grad, "fast": fast}


def random_numbers():
    results = {}
    for i in range(6):
        results[f"{i}-normal"] = torch.randn(SIDE, SIDE)
        results[f"{i}-bernoulli"] = torch.bernoulli(torch.rand(SIDE, SIDE))
        results[f"{i}-permutation"] = torch.randperm(200_000)
        results[f"{i}-multinomial"] = torch.multinomial(torch.rand(40, SIDE), 9)
        results[f"{i}-poisson"] = torch.poisson(results[f"{i}-normal"].abs() * 9)
        results[f"{i}-dropout"] = F.dropout(results[f"{i}-normal"], 0.3)
        results[f"{i}-gumbel"] = F.gumbel_softmax(results[f"{i}-normal"])
        results[f"{i}-init"] = nn.init.orthogonal_(torch.empty(200, SIDE))
    return results


def sparse_matrices():
    results = {}
    for i, matrix in enumerate(matrices(6)):
        thin = torch.where(matrix > 1, matrix, 0.0)
        coo, csr = thin.to_sparse(), thin.to_sparse_csr()
        results[f"{i}-coo"] = torch.sparse.mm(coo, matrix)
        results[f"{i}-csr"] = csr @ matrix
        results[f"{i}-sum"] = (coo + coo.transpose(0, 1)).coalesce().to_dense()
        results[f"{i}-values"] = csr.values().clone()
        results[f"{i}-sparse"] = coo * 2
    return results


def other_types():
    results = {}
    for i, matrix in enumerate(matrices(8)):
        results[f"{i}-half"] = (matrix.half() @ matrix.half()).float()
        results[f"{i}-bfloat16"] = torch.tanh(matrix.bfloat16()) * 3
        results[f"{i}-bytes"] = (matrix * 9).to(torch.int8).view(torch.uint8)
        results[f"{i}-bool"] = (matrix > 0) & (matrix.T < 1)
        results[f"{i}-double"] = matrix.double().cumprod(1)
        results[f"{i}-long"] = (matrix * 1000).long() % 17
        results[f"{i}-bits"] = matrix.view(torch.int32) >> 3
    return results


def functional_transforms():
    weights = torch.randn(SIDE, SIDE)
    loss = lambda w, x: torch.tanh(x @ w).square().sum()
    batch = torch.randn(24, SIDE)
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    return {
        **{i: per_sample(weights, part).sum(0) for i, part in enumerate(batch.split(2))},
        "jvp": torch.func.jvp(lambda w: loss(w, batch), (weights,), (weights.T.contiguous(),))[1],
        "hessian": torch.func.hessian(lambda b: loss(weights, b))(batch[0, :SIDE]),
    }


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)  # computed by numpy

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient * 3 * x**2


def own_functions_and_hooks():
    inputs = [matrix.requires_grad_() for matrix in matrices(8)]
    seen = []
    for tensor in inputs:
        tensor.register_hook(lambda gradient: seen.append(gradient.norm()) or gradient * 0.5)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), torch.from_numpy):
        sum(Cubed.apply(tensor).sin().mean() for tensor in inputs).backward()
    return {**{i: tensor.grad for i, tensor in enumerate(inputs)}, "seen": torch.stack(seen)}


def storages_change_hands():
    results = {}
    for i, matrix in enumerate(matrices(12)):
        other = torch.empty(0)
        other.set_(matrix.untyped_storage(), 9, (100, 9), (SIDE, 2))
        grown = torch.ones(3).resize_(200_000).fill_(i)
        matrix.data = matrix.data.t().contiguous()
        swapped = torch.zeros(SIDE, SIDE)
        torch.utils.swap_tensors(swapped, matrix)
        results |= {f"{i}-set": other, f"{i}-grown": grown, f"{i}-swapped": swapped, f"{i}-list": torch.tensor(matrix.tolist())}
        results[f"{i}-shared"] = swapped.clone().share_memory_()
        results[f"{i}-numpy"] = torch.from_numpy(np.sqrt(np.abs(swapped.numpy())))
        results[f"{i}-buffer"] = torch.frombuffer(bytearray(swapped.numpy().tobytes()), dtype=torch.float32)
    return results


def scripted():
    @torch.jit.script
    def fused(x, y):
        for _ in range(4):
            x = torch.tanh(x @ y) + x.relu() * 0.1
        return x

    return {i: fused(a, b) for i, (a, b) in enumerate(itertools.pairwise(matrices(14)))}


WORKS = [
    in_place_and_views, views_keep_a_storage_alive, indexing, reductions_and_sorting, linear_algebra,
    complex_numbers_and_transforms, convolutions_and_norms, recurrent_networks, attention, random_numbers,
    sparse_matrices, other_types, functional_transforms, own_functions_and_hooks, storages_change_hands, scripted,
]  # fmt: skip


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_operators(work, disk, eviction):
    same_under_limit(disk, work, MEMORY)
