"""What less traffic costs and saves: a small language model on made-up text, trained with each way of sending less, beside the
plain one. Bytes are counted, not timed: of one rank, in a step, and of these what came from other nodes; the error is the
relative difference of the loss, over the last steps, on average and at most.

    torchrun --nproc-per-node 4 bench/shard_traffic.py [--steps 100] [--ranks-per-node 2] [--memory 24MiB]
"""

import argparse
import json
import statistics
import tempfile

import torch
import torch.distributed as dist
from torch import nn

import bottomless

WAYS = {
    "plain": {},
    "quantised_weights": {"quantised_weights": True},
    "quantised_gradients": {"quantised_gradients": True},
    "both quantised": {"quantised_weights": True, "quantised_gradients": True},
    "node_shares": {"node_shares": True},
}
WORDS, WIDTH, LENGTH = 512, 256, 32


class Model(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = lambda: nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.words(text)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def batches(steps):
    """Text in which each word mostly follows from the one before."""
    data = torch.Generator().manual_seed(dist.get_rank())
    follows = torch.randperm(WORDS, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        text = torch.randint(WORDS, (4, LENGTH + 1), generator=data)
        for at in range(1, LENGTH + 1):
            keeps = torch.rand(4, generator=data) < 0.8
            text[:, at] = torch.where(keeps, follows[text[:, at - 1]], text[:, at])
        yield text[:, :-1], text[:, 1:]


def train(way, options, disk):
    with bottomless.limit(options.memory, disk) as runtime:
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        sharded = bottomless.shard(model, optimizer, stage=3, ranks_per_node=options.ranks_per_node, **WAYS[way])
        losses, traffic = [], []
        for text, following in batches(options.steps):
            loss = nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            traffic.append(sharded.stats())
        keys = ("received_parameter_bytes", "received_gradient_bytes", "received_across_bytes", "received_parameter_across_bytes")
        moved = {key: (traffic[-1][key] - traffic[0][key]) / (options.steps - 1) for key in keys}
        moved |= {key: runtime.stats()[key] for key in ("peak_bytes", "evictions", "written_bytes")}
        sharded.close()
    return losses, moved


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--memory", default="24MiB")
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    last = max(1, options.steps // 5)
    plain = None
    for way in options.ways.split(","):
        with tempfile.TemporaryDirectory() as disk:
            losses, moved = train(way, options, disk)
        plain = plain or losses
        errors = [abs(ours - theirs) / theirs for ours, theirs in zip(losses[-last:], plain[-last:])]
        if dist.get_rank() == 0:
            found = {"way": way, "first_loss": losses[0], "loss": statistics.mean(losses[-last:])}
            found |= {"mean_error": statistics.mean(errors), "most_error": max(errors), **moved}
            print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
