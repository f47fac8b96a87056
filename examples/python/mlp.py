"""A deep residual perceptron learns to imitate a random teacher: as simple as training gets."""

import torch
from torch import nn
from torch.nn import functional as F

import common


class Block(nn.Module):
    """x + W2 relu(W1 norm(x))"""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class MLP(nn.Module):
    def __init__(self, inputs, width, layers, classes):
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


class Teacher:
    """Labels random points with the strongest output of a fixed, random two-layer network."""

    def __init__(self, inputs, classes):
        self.first = torch.randn(inputs, 4 * inputs)
        self.second = torch.randn(4 * inputs, classes)

    def batch(self, size):
        points = torch.randn(size, len(self.first))
        return points, (torch.tanh(points @ self.first) @ self.second).argmax(dim=1)


def main():
    args = common.options(__doc__, layers=16, width=512, inputs=32, classes=10, batch=256)
    teacher = Teacher(args.inputs, args.classes)
    model = MLP(args.inputs, args.width, args.layers, args.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)

    for step in range(args.steps):
        points, labels = teacher.batch(args.batch)
        loss = F.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        common.report(step, loss)
    common.finish(model, optimizer)


if __name__ == "__main__":
    main()
