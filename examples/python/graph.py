"""A graph network finds communities, gathering along edges and scattering back to nodes."""

import torch
from torch import nn
from torch.nn import functional as F

import common


class Layer(nn.Module):
    """Every edge carries a gated message; every node takes the mean of what arrives."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.message = nn.Linear(width, width)
        self.gate_source = nn.Linear(width, width)
        self.gate_target = nn.Linear(width, width)
        self.update = nn.Linear(2 * width, width)

    def forward(self, nodes, source, target, degree):
        x = self.norm(nodes)
        gate = self.gate_source(x).index_select(0, source)
        gate = gate + self.gate_target(x).index_select(0, target)
        message = torch.sigmoid(gate) * self.message(x).index_select(0, source)
        arrived = torch.zeros_like(x).index_add(0, target, message) / degree
        return nodes + F.relu(self.update(torch.cat([x, arrived], dim=1)))


class GraphNetwork(nn.Module):
    def __init__(self, features, width, layers, classes):
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, features, source, target):
        degree = torch.zeros(len(features), 1).index_add(0, target, torch.ones(len(target), 1))
        degree = degree.clamp(min=1)
        nodes = self.embed(features)
        for layer in self.layers:
            nodes = layer(nodes, source, target, degree)
        return self.head(nodes)


def communities(nodes, edges, classes, features):
    """Three edges of four stay inside a community; a node's own features only hint at its label."""
    labels = torch.arange(nodes) % classes
    source = torch.randint(nodes, (edges,))
    inside = torch.rand(edges) < 0.75
    anywhere = torch.randint(nodes, (edges,))
    neighbour = (anywhere - anywhere % classes + source % classes).clamp(max=nodes - 1)
    target = torch.where(inside, neighbour, anywhere)
    hints = 0.5 * F.one_hot(labels, features).float() + torch.randn(nodes, features)
    return hints, source, target, labels


def main():
    args = common.options(__doc__, layers=12, width=96, nodes=1536, edges=6144, classes=6)
    features = 2 * args.classes
    model = GraphNetwork(features, args.width, args.layers, args.classes)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=2e-3)

    for step in range(args.steps):  # a new graph each time: the rule is learned, not the nodes
        hints, source, target, labels = communities(args.nodes, args.edges, args.classes, features)
        loss = F.cross_entropy(model(hints, source, target), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        common.report(step, loss)
    common.finish(model, optimizer)


if __name__ == "__main__":
    main()
