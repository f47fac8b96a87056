"""Training loops in the manner of well-known example scripts: what they leave behind is the same inside a limit."""

import math
import os
import sys
import tempfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from foreign import WORDS, Sentences, small_llama
from helpers import run, same_under_limit, training_state


def language_model():
    """Evaluation every few steps, a checkpoint with everything in it, and another process's worth of resuming."""

    def batch(step):
        rows = [Sentences()[(2 * step + row) % 24]["input_ids"] for row in range(2)]
        return torch.stack(rows)

    def begin(seed):
        model = small_llama(seed=seed)
        decayed = [p for p in model.parameters() if p.dim() >= 2]
        other = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]
        return model, torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))

    @torch.no_grad()
    def loss_of(model):
        model.eval()
        losses = torch.zeros(3)
        for index in range(3):
            tokens = batch(100 + index)
            losses[index] = model(input_ids=tokens, labels=tokens).loss
        model.train()
        return losses.mean()

    losses = []

    def train(model, optimizer, steps):
        for step in steps:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / 6))
            for part in range(2):
                tokens = batch(2 * step + part)
                (model(input_ids=tokens, labels=tokens).loss / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss_of(model))

    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "checkpoint.pt")
        model, optimizer = begin(seed=0)
        train(model, optimizer, range(2))
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**states, "step": 2, "random": torch.get_rng_state()}, path)
        train(model, optimizer, range(2, 4))
        again, its_optimizer = begin(seed=5)
        saved = torch.load(path)
        again.load_state_dict(saved["model"])
        its_optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        train(again, its_optimizer, range(saved["step"], 4))
    assert torch.equal(torch.stack(losses[-2:]), torch.stack(losses[2:4])), "resuming made a difference"
    with torch.inference_mode():
        written = again.generate(torch.tensor([[1, 5, 9]]), max_new_tokens=6, do_sample=False, use_cache=True)
    return {**training_state(again, its_optimizer), "losses": torch.stack(losses), "written": written}


class WordLSTM(nn.Module):
    """Tied embeddings, dropout, a state that is carried on from batch to batch."""

    def __init__(self, width=192, layers=2):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=0.2)
        self.decoder = nn.Linear(width, WORDS)
        self.decoder.weight = self.encoder.weight
        self.width, self.layers = width, layers

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return F.log_softmax(self.decoder(self.drop(output)).view(-1, WORDS), dim=1), hidden

    def begin(self, rows):
        weight = next(self.parameters())
        return weight.new_zeros(self.layers, rows, self.width), weight.new_zeros(self.layers, rows, self.width)


class WordTransformer(nn.Module):
    def __init__(self, width=128, layers=2):
        super().__init__()
        place = torch.arange(64).unsqueeze(1) / torch.pow(10000.0, torch.arange(0, width, 2) / width)
        self.register_buffer("places", torch.stack([place.sin(), place.cos()], 2).view(64, 1, width))
        self.encoder = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.2)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, WORDS)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(len(tokens))
        x = self.encoder(tokens) * math.sqrt(self.encoder.embedding_dim) + self.places[: len(tokens)]
        return F.log_softmax(self.decoder(self.body(x, mask=mask)).view(-1, WORDS), dim=1)


def word_model(kind):
    """Batches cut from one long text, SGD by hand, a rate that falls when validation does not improve, the best kept."""
    text = torch.randint(0, WORDS, (6 * 12 + 1, 4), generator=torch.Generator().manual_seed(1))
    model = kind()
    best, rate, kept = None, 2.0, None
    losses = []
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(2):
            model.train()
            hidden = model.begin(4) if isinstance(model, WordLSTM) else None
            for at in range(0, 4 * 12, 12):
                tokens, wanted = text[at : at + 12], text[at + 1 : at + 13].reshape(-1)
                model.zero_grad()
                if hidden is not None:
                    hidden = tuple(part.detach() for part in hidden)
                    output, hidden = model(tokens, hidden)
                else:
                    output = model(tokens)
                loss = F.nll_loss(output, wanted)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                for parameter in model.parameters():
                    parameter.data.add_(parameter.grad, alpha=-rate)
                losses.append(loss.detach())
            model.eval()
            with torch.no_grad():
                tokens, wanted = text[48:60], text[49:61].reshape(-1)
                output = model(tokens, model.begin(4))[0] if isinstance(model, WordLSTM) else model(tokens)
                validation = F.nll_loss(output, wanted).item()
            if best is None or validation < best:
                best, kept = validation, os.path.join(directory, "model.pt")
                torch.save(model, kept)
            else:
                rate /= 4.0
        model = torch.load(kept, weights_only=False)
        if isinstance(model, WordLSTM):
            model.rnn.flatten_parameters()
    return {
        **dict(model.named_parameters()),
        "losses": torch.stack(losses),
        "best": torch.tensor(best, dtype=torch.float64),
    }


def lbfgs_in_float64():
    """Sine waves foretold by two LSTM cells, the whole set at once in the closure, then run on into the future."""

    class Waves(nn.Module):
        def __init__(self, width=51):
            super().__init__()
            self.first, self.second = nn.LSTMCell(1, width), nn.LSTMCell(width, width)
            self.last, self.width = nn.Linear(width, 1), width

        def forward(self, given, future=0):
            states = [given.new_zeros(len(given), self.width) for _ in range(4)]
            outputs, output = [], None
            for at in range(given.shape[1] + future):
                part = given[:, at : at + 1] if at < given.shape[1] else output
                states[:2] = self.first(part, states[:2])
                states[2:] = self.second(states[0], states[2:])
                output = self.last(states[2])
                outputs.append(output)
            return torch.cat(outputs, dim=1)

    data = torch.sin(torch.arange(97)[:, None] + torch.arange(12, dtype=torch.float64) / 4)
    model = Waves().double()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.8, max_iter=3, history_size=5, line_search_fn="strong_wolfe"
    )
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(data[3:, :-1]), data[3:, 1:])
        loss.backward()
        losses.append(loss.detach())
        return loss

    for _ in range(2):
        optimizer.step(closure)
    with torch.no_grad():
        foretold = model(data[:3, :-1], future=10)
    return {**training_state(model, optimizer), "losses": torch.stack(losses), "foretold": foretold}


def graph_networks():
    """Graph convolution over a sparse matrix, and attention over edges by gathering and scattering."""
    nodes, edges, width = 600, 4000, 128
    generator = torch.Generator().manual_seed(2)
    ends = torch.randint(0, nodes, (2, edges), generator=generator)
    weights = torch.rand(edges, generator=generator)
    matrix = torch.sparse_coo_tensor(ends, weights, (nodes, nodes), check_invariants=True).coalesce()
    features = torch.randn(nodes, width, generator=generator)
    labels = torch.randint(0, 7, (nodes,), generator=generator)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.score = nn.Linear(width, width, bias=False), nn.Linear(2 * width, 1, bias=False)

        def forward(self, x):
            x = self.project(x)
            source, target = ends
            score = F.leaky_relu(self.score(torch.cat([x[source], x[target]], 1)).squeeze(1), 0.2)
            most = torch.full((nodes,), -1e9).scatter_reduce(0, target, score, "amax")
            weight = (score - most[target]).exp()
            total = torch.zeros(nodes).index_add(0, target, weight)
            part = (weight / total[target].clamp_min(1e-9)).unsqueeze(1) * x[source]
            return torch.zeros_like(x).index_add(0, target, part)

    first, second, attention = nn.Linear(width, width), nn.Linear(width, 7), Attention()
    model = nn.ModuleList([first, second, attention])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        x = F.relu(torch.sparse.mm(matrix, first(features)))
        x = F.elu(attention(F.dropout(x, 0.5)))
        loss = F.cross_entropy(torch.sparse.mm(matrix, second(x)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {**training_state(model, optimizer), "losses": torch.stack(losses)}


LOOPS = {
    "language_model": (language_model, "12MiB"),
    "word_lstm": (lambda: word_model(WordLSTM), "10MiB"),
    "word_transformer": (lambda: word_model(WordTransformer), "9MiB"),
    "lbfgs_in_float64": (lbfgs_in_float64, "8MiB"),
    "graph_networks": (graph_networks, "10MiB"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop(name, disk, monkeypatch):
    monkeypatch.setenv("BOTTOMLESS_EVICT_EAGERLY", "1")
    work, memory = LOOPS[name]
    same_under_limit(disk, work, memory)


HOGWILD = """if True:
    import sys, torch, torch.multiprocessing as multiprocessing, torch.nn.functional as F
    from torch import nn
    import bottomless
    from helpers import check_moved, fingerprints

    def train(model, rank, turns, together):
        torch.set_num_threads(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        data = torch.Generator().manual_seed(rank)
        for step in range(4):
            if not together:
                turns[rank].acquire()
            optimizer.zero_grad()
            x = torch.randn(8, 256, generator=data)
            F.mse_loss(model(x), x).backward()
            optimizer.step()
            if not together:
                turns[1 - rank].release()

    if __name__ == "__main__":
        memory, disk, together, method = sys.argv[1:]
        runtime = bottomless.limit(memory, disk) if memory else None
        context = multiprocessing.get_context(method)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)))
        beside = [torch.full((1 << 18,), float(n)) for n in range(12)]  # what the main process works on meanwhile
        model.share_memory()
        turns = [context.Semaphore(1), context.Semaphore(0)]
        processes = [context.Process(target=train, args=(model, rank, turns, together == "1")) for rank in range(2)]
        for process in processes:
            process.start()
        for _ in range(3):
            for tensor in beside:
                tensor.mul_(1.5)
        for process in processes:
            process.join()
            assert process.exitcode == 0, process.exitcode
        test = torch.randn(64, 256)
        loss = F.mse_loss(model(test), test)
        assert bool(torch.isfinite(loss))
        left = {**model.state_dict(), "loss": loss, "beside": torch.cat([tensor[:9] for tensor in beside])}
        print("loss" if together == "1" else fingerprints(left))
        if runtime:
            check_moved(runtime.stats())
"""


def run_hogwild(program, *arguments):
    paths = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
    return run([sys.executable, program, *map(str, arguments)], env={"PYTHONPATH": paths})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_hogwild(method, disk, tmp_path):
    """Processes train one model in shared memory. Taking turns the bits are the same; all at once it ends well."""
    program = tmp_path / "hogwild.py"
    program.write_text(HOGWILD)
    said = {}
    for memory in ("", "10MiB"):
        outcome = run_hogwild(program, memory, disk, "0", method)
        assert outcome.code == 0, outcome.err
        said[memory] = outcome.out
    assert said[""] == said["10MiB"]
    if method == "spawn":  # slow to start, and the same from then on
        return
    outcome = run_hogwild(program, "10MiB", disk, "1", method)
    assert (outcome.code, outcome.out) == (0, "loss\n"), outcome.err
