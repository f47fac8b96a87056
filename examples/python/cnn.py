"""A residual network with batch norm tells striped images apart; most memory is activations."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import common


class Block(nn.Module):
    """Two normalized convolutions beside a shortcut, which is one too where the shape changes."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Three stages of `layers` blocks; each next one halves the image and doubles the channels."""

    def __init__(self, width, layers, classes):
        super().__init__()
        blocks = [nn.Conv2d(3, width, 3, padding=1)]
        channels = width
        for stage in range(3):
            outputs = width << stage
            for layer in range(layers):
                stride = 2 if stage > 0 and layer == 0 else 1
                blocks.append(Block(channels, outputs, stride))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images):
        return self.head(self.blocks(images).mean(dim=(2, 3)))


def stripes(batch, size, classes):
    """Noisy coloured stripes; the class is their angle."""
    labels = torch.randint(classes, (batch,))
    angles = labels * (math.pi / classes)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    distance = x * angles.cos().view(-1, 1, 1) + y * angles.sin().view(-1, 1, 1)
    phase = 2 * math.pi * torch.rand(batch, 3, 1, 1)
    images = torch.sin(0.8 * distance.unsqueeze(1) + phase)
    return images + 0.3 * torch.randn(batch, 3, size, size), labels


def main():
    args = common.options(__doc__, layers=10, width=24, size=32, classes=8, batch=16)
    model = ResNet(args.width, args.layers, args.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    for step in range(args.steps):
        images, labels = stripes(args.batch, args.size, args.classes)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        common.report(step, loss)
    common.finish(model, optimizer)


if __name__ == "__main__":
    main()
