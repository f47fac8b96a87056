"""A stack of residual LSTM layers reads Python's standard library, byte by byte."""

import torch
from torch import nn
from torch.nn import functional as F

import common


class Layer(nn.Module):
    """x + LSTM(norm(x))"""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x, state):
        y, state = self.lstm(self.norm(x), state)
        return x + y, state


class Reader(nn.Module):
    def __init__(self, width, layers, symbols=256):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols)

    def forward(self, symbols, states):
        x = self.embed(symbols)
        next_states = []
        for layer, state in zip(self.layers, states):
            x, state = layer(x, state)
            next_states.append(tuple(part.detach() for part in state))
        return self.head(self.norm(x)), next_states


def passages(text, batch, context):
    """Reads `batch` columns of the text in parallel, `context` bytes at a time, without end."""
    columns = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    columns = columns[: len(columns) // batch * batch].view(batch, -1)
    while True:
        for start in range(0, columns.shape[1] - context, context):
            window = columns[:, start : start + context + 1].long()
            yield window[:, :-1], window[:, 1:]


def main():
    args = common.options(__doc__, layers=14, width=256, context=32, batch=12)
    model = Reader(args.width, args.layers)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
    states = [None] * args.layers  # carried on from passage to passage

    data = passages(common.library_text(), args.batch, args.context)
    for step, (inputs, targets) in zip(range(args.steps), data):
        logits, states = model(inputs, states)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        common.report(step, loss)
    common.finish(model, optimizer)


if __name__ == "__main__":
    main()
