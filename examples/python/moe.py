"""A mixture of experts: every byte picks its own two, so the shapes differ from step to step.

Which weights a step touches is known only once the router has spoken. An expert that nobody picked
gets no gradient, and the optimizer leaves it alone.
"""

import torch
from torch import nn
from torch.nn import functional as F

import common


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Mixture(nn.Module):
    """Sends each row to its `chosen` best experts and adds up their weighted answers."""

    def __init__(self, width, experts, chosen):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, x):
        scores, choices = self.router(x).softmax(dim=1).topk(self.chosen, dim=1)
        scores = scores / scores.sum(dim=1, keepdim=True)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, ranks = torch.where(choices == index)
            if len(rows) > 0:
                answer = expert(x[rows]) * scores[rows, ranks].unsqueeze(1)
                result = result.index_add(0, rows, answer)
        return result


class Block(nn.Module):
    """Mixes over time with a causal depthwise convolution, then over channels with the experts."""

    def __init__(self, width, experts, chosen, reach=8):
        super().__init__()
        self.reach = reach
        self.norm1 = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, reach, groups=width)
        self.norm2 = nn.LayerNorm(width)
        self.mixture = Mixture(width, experts, chosen)

    def forward(self, x):
        past = F.pad(self.norm1(x).transpose(1, 2), (self.reach - 1, 0))
        x = x + self.conv(past).transpose(1, 2)
        return x + self.mixture(self.norm2(x).flatten(0, 1)).view_as(x)


class Model(nn.Module):
    def __init__(self, width, layers, experts, chosen, symbols=256):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.blocks = nn.Sequential(*(Block(width, experts, chosen) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols)

    def forward(self, symbols):
        return self.head(self.norm(self.blocks(self.embed(symbols))))


def main():
    args = common.options(
        __doc__, layers=6, width=192, experts=8, chosen=2, context=128, batch=3
    )
    data = common.ByteBatches(args.batch, args.context)
    model = Model(args.width, args.layers, args.experts, args.chosen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    for step in range(args.steps):
        inputs, targets = data.next()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        common.report(step, loss)
    common.finish(model, optimizer)


if __name__ == "__main__":
    main()
