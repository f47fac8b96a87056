"""Small models that random programs train, as ordinary scripts do."""

import copy
import io

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Body(nn.Module):
    def __init__(self, kind, width, layers):
        super().__init__()
        self.kind, self.width, self.checkpointed = kind, width, False
        if kind == "lstm":
            self.parts = nn.ModuleList([nn.LSTM(width, width, batch_first=True) for _ in range(layers)])
        elif kind == "transformer":
            layer = dict(dim_feedforward=2 * width, dropout=0.0, batch_first=True)
            self.parts = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, **layer) for _ in range(layers)])
        elif kind == "convolutions":
            self.parts = nn.ModuleList(
                [
                    nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU())
                    for _ in range(layers)
                ]
            )
        else:
            self.parts = nn.ModuleList(
                [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
            )
        self.tokens = nn.Embedding(1000, width, sparse=kind == "sparse")

    def forward(self, tokens):
        x = self.tokens(tokens)
        if self.kind == "convolutions":
            x = x.transpose(1, 2)
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False) if self.checkpointed else part(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


class Training:
    """A model and its optimizer, with the seed of all its data."""

    def __init__(self, kind, width, layers, optimizer, seed):
        self.data = torch.Generator().manual_seed(seed)
        self.model = Body(kind, width, layers)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.uniform_(-0.1, 0.1, generator=self.data)
        name, _, variant = optimizer.partition("-")
        options = (
            {variant: True} if variant in ("foreach", "fused") else {"momentum": 0.9} if variant == "momentum" else {}
        )
        if kind == "sparse":
            name, options = "SGD", {}
        self.optimizer = getattr(torch.optim, name)(self.model.parameters(), lr=1e-3, **options)

    def train(self, steps, clip=False, passes=1, autocast=False, checkpointed=False, keep_gradients=False):
        self.model.checkpointed = checkpointed
        losses = []
        for _ in range(steps):
            for _ in range(passes):
                tokens = torch.randint(0, 1000, (2, 16), generator=self.data)
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = self.model(tokens).float().square().mean()
                loss.backward()
                losses.append(loss.item())
            if clip and self.model.kind != "sparse":
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=not keep_gradients)
        return losses

    def evaluate(self):
        with torch.inference_mode():
            return self.model(torch.arange(32).reshape(2, 16)).float().mean().item()

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)

    def load(self, path, mmap=False):
        state = torch.load(path, mmap=mmap)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def reload(self):
        buffer = io.BytesIO()
        self.save(buffer)
        buffer.seek(0)
        self.load(buffer)

    def copied(self):
        twin = copy.copy(self)
        twin.model, twin.optimizer = copy.deepcopy((self.model, self.optimizer))
        twin.data = torch.Generator().manual_seed(1)
        return twin

    def tensors(self):
        named = dict(self.model.state_dict())
        named |= {f"{name}.grad": p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        for index, state in self.optimizer.state_dict()["state"].items():
            named |= {f"{index}.{name}": value for name, value in state.items() if torch.is_tensor(value)}
        return named
