"""Makes random programs: the same seed, the same program.

Tensors live in t[0], t[1], ..., models in m[0], m[1]. Which of them share memory is kept track of, on the safe side,
so that threads never touch what another one writes.
"""

import random

from .program import Block, Program

SLOTS, MODELS = 12, 2
TYPES = ["float32"] * 6 + ["float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64"]
WIDTHS = {
    "float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8,
    "int32": 4, "uint8": 1, "bool": 1, "complex64": 8,
}  # fmt: skip
KIB, MIB = 1 << 10, 1 << 20
# Pages, pieces of a checksum, the smallest tensors that may leave, small and large frames.
BOUNDARIES = [1, 64, 512, 4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB]
LIMITS = [8 * MIB, 8 * MIB, 8 * MIB + 4096, 9 * MIB, 10 * MIB, 12 * MIB, 16 * MIB, 24 * MIB, 40 * MIB]
OPTIMIZERS = ["SGD", "SGD-momentum", "Adam", "AdamW-foreach", "AdamW-fused", "Adagrad", "RMSprop"]
UNARY = [
    "{a}.neg()", "real({a}).exp()", "real({a}).sigmoid()", "real({a}).tanh()", "{a}.abs()",
    "real({a}).softmax(-1)", "{a}.flip(0)",
    "real({a}).cumsum(0)", "flat({a}).sort().values", "torch.nn.functional.gelu(real({a}))",
    "{a}.clone()", "{a}.contiguous()", "real({a}).to(torch.{type})", "torch.zeros_like({a})", "{a}.roll(3)",
    "flat({a}).repeat(2)[:9999]",
    "flat({a})[flat({a}) != 0][:5000]", "flat({a}).unique()", "torch.where({a} > 0, {a}, -{a})",
    "torch.tril(matrix({a}))",
    "torch.nn.functional.layer_norm(real({a}), real({a}).shape[-1:])", "torch.nn.functional.dropout(real({a}), 0.0)",
    "flat({a})[indices({a}, {seed})]", "flat({a}).topk(min(9, {a}.numel())).values",
    "real({a}).bernoulli(0.5, generator=torch.Generator().manual_seed({seed}))",
]  # fmt: skip
BINARY = [
    "torch.add(*alike({a}, {b}))", "torch.sub(*alike({a}, {b}))", "torch.maximum(*alike({a}, {b}))",
    "torch.cat(alike({a}, {b}))",
    "torch.stack(alike({a}, {b}), 1)", "torch.mul(*map(real, alike({a}, {b})))", "matrix({a}) @ matrix({a}).t()",
    "torch.addmm(matrix({a}), matrix({a}), matrix({a}))", "torch.outer(flat({a})[:300], flat({b})[:300])",
    "torch.lerp(*map(real, alike({a}, {b})), 0.25)", "torch.einsum('ij,kj->ik', matrix({a}, 128), matrix({a}, 128))",
    "torch.eq(*alike({a}, {b}))", "torch.addcmul(*map(real, alike({a}, {b}, {a})))",
    "torch._foreach_add(alike({a}, {b}), 1)[1]",
    "torch.nn.functional.conv1d(matrix({a})[None], matrix({a}, 32)[:, None, :3].expand(-1, matrix({a}).shape[0], -1))",
    "gradients(lambda x: (x * x).tanh(), {a})[0]",
    "gradients(lambda x, y: torch.sigmoid(x[:3].sum() * y), {a}, {b})[1]",
    "gradients(lambda x: matrix(x) @ matrix(x).t() + x.sum(), {a})[0]", "torch.vmap(lambda x: x * 2)(matrix({a}))",
    "flat({a}).index_select(0, indices({a}, {seed}))", "torch.linalg.norm(matrix({a}), dim=0)",
]  # fmt: skip
IN_PLACE = [
    "{a}.add_(1)", "{a}.zero_()", "{a}.fill_(1)", "{a}.mul_(1)", "{a}.clamp_(0, 3)", "{a}.neg_()",
    "{a}.copy_(flat({b})[0])",
    "x, y = pair({a}, {b}); x.copy_(y)", "x, y = pair({a}, {b}); x.sub_(y)", "part({a}, {low}, {high}).add_(1)",
    "part({a}, {low}, {high}, 3).zero_()", "part({a}, 0, 500)[:] = 2", "flat({a})[indices({a}, {seed})] = 3",
    "flat({a}).index_fill_(0, indices({a}, {seed}), 2)",
    "flat({a}).index_add_(0, torch.arange(min(5, {a}.numel())), flat({a})[:5].clone())",
    "flat({a}).masked_fill_(flat({a}) == 1, 0)", "torch._foreach_mul_([part({a}, 0, 300), part({a}, 600, 900)], 1)",
    "torch.add(flat({a}), 1, out=flat({a}))", "torch.neg(part({a}, 0, 400).clone(), out=part({a}, 500, 900))",
    "{a}[...] = {a}.flip(0)",
    "matrix({a}); torch.mul({a}, 1, out={a})", "{a}.bernoulli_(0.5, generator=torch.Generator().manual_seed({seed}))",
    "flat({a}).scatter_(0, indices({a}, {seed}), 1)", "{a}.squeeze_(); {a}.unsqueeze_(0)", "{a}.transpose_(0, -1)",
    "{a}.set_({a}.clone())", "{a}.data = {a}.data.clone()", "{a}.resize_({a}.numel() // 2)",
]  # fmt: skip
VIEWS = [
    "part({a}, {low}, {high})", "part({a}, {low}, {high}, 2)", "{a}.t()", "{a}.view(-1)", "{a}.reshape(-1, 2)",
    "{a}.detach()",
    "{a}.transpose(0, -1)", "{a}.unsqueeze(1)", "flat({a}).unfold(0, 2, 2)", "{a}.chunk(3)[-1]",
    "{a}.narrow(0, 0, 1)", "{a}[..., ::2]",
    "flat({a}).as_strided(({a}.numel() // 2,), (2,))", "{a}.movedim(0, -1)", "torch.from_dlpack({a}.detach())",
    "{a}.diagonal()",
    "torch.from_numpy({a}.detach().numpy())", "flat({a}).split(1000)[0]", "{a}.expand(2, *{a}.shape)[1]", "{a}.mT",
]  # fmt: skip
RAW = [
    "in_numpy({a}, 1)", "in_numpy({a}, 2)", "in_numpy({a}, 1000)", "say(by_dlpack({a}))",
    "set_bytes({a}, {low}, {high}, 0)",
    "set_bytes({a}, {low}, {high}, 1)", "move_bytes({a}, {b})", "array({a})[-1:] = 1",
    "say(bytes(memoryview(array({a}))[-9:]))",
    "say(ctypes.string_at({a}.data_ptr(), min(16, {a}.numel())) if {a}.is_contiguous() else 0)", "signal_self({a})",
    "say({a}.tolist()[:3])", "say(str({a}))", "say({a}.data_ptr() % 16)", "say(float(real({a}).sum()))", "say({a})",
]  # fmt: skip
FILES = [
    "write_file(path('{name}.raw'), {a}, '{write}')",
    "write_file(path('{name}.raw'), {a}, '{write}'); read_file(path('{name}.raw'), {a}, '{read}')",
    "through('pipe', {a}, {b})", "through('send', {a}, {b})", "through('sendmsg', {a}, {b})",
]  # fmt: skip
WRONG = [
    "{a}.add_(flat({a})[:-1])", "torch.mm({a}, {a})", "{a}[10**9]", "flat({a})[torch.tensor([10**9])]",
    "{a}.view(-1, 7, 1000003)",
    "Refuses.apply(real({a}).requires_grad_()).sum().backward()", "torch.cat([{a}, {a}[None]])",
    "raise ValueError('mine')",
    "real({a}).requires_grad_().add_(1)", "{a}.copy_(flat({a})[:-1])",
    "torch.nn.functional.embedding(torch.tensor([10**9]), matrix({a}))",
    "x = real({a}).requires_grad_(); y = (x * x).sum(); y.backward(); y.backward()", "torch.empty(-1)",
    "{a}.index_copy_(0, torch.tensor([-5]), {a})",
    "too_much({a}, 8)", "too_much({a}, 50)", "1 / 0", "torch.linalg.cholesky(-matrix({a}))",
]  # fmt: skip
FREE = [
    "t.pop({n}, None)", "t.pop({n}, None); gc.collect()", "x = [{a}]; x.append(x); t.pop({n})",
    "x = {a}.clone(); x.untyped_storage().resize_(0); t.pop({n})",
]  # fmt: skip
LIMIT = ["mark_step()", "mark_step()", "look()", "gc.collect()", "reopen({share})"]
TRAIN = [
    "say(m[{k}].train({count}))",
    "say(m[{k}].train({count}, clip={flag}, passes={count}, autocast={flag2}))",
    "say(m[{k}].train({count}, clip={flag}, checkpointed={flag3}, keep_gradients={flag4}))",
    "say(m[{k}].train(3))", "say(m[{k}].evaluate())", "m[{k}].reload()",
    "m[{k}].save(path('m{k}')); m[{k}].load(path('m{k}'), mmap={flag})",
    "m[{k}].optimizer.zero_grad()", "m[{k}] = m[{k}].copied()", "m[{k}].model.requires_grad_({flag})",
    "m[{k}].model.parts[0].requires_grad_(False)",
    "in_numpy(next(m[{k}].model.parameters()), 2)", "m[{k}].model.bfloat16(); m[{k}].model.float()",
    "m.pop({k}, None)",
]  # fmt: skip
WEIGHTS = {
    "make": 7, "unary": 5, "binary": 6, "in_place": 7, "view": 5, "raw": 6, "file": 4, "wrong": 2, "free": 3,
    "limit": 2, "train": 3, "saved": 2, "model": 2, "copy": 2,
}  # fmt: skip


class Writer:
    def __init__(self, seed, memory):
        self.random, self.memory = random.Random(seed), memory
        self.groups = {}  # of each tensor: those with the same number may share memory
        self.models = set()
        self.made = 0

    def shape(self, type_):
        """Of a tensor whose bytes are at a boundary, or one element off."""
        bytes_ = self.random.choice([*BOUNDARIES, self.memory // 16, self.memory // 16, self.memory // 8])
        count = max(0, min(bytes_, self.memory // 6) // WIDTHS[type_] + self.random.choice([0, 0, 0, -1, 1, -8, 8]))
        for rows in self.random.sample([2, 3, 4, 8, 16, 64], 3):
            if self.random.random() < 0.4 and count and count % rows == 0:
                return (rows, count // rows)
        return (count,)

    def statement(self, slots, models, alone=True):
        """One that touches no other tensors and models than these."""
        kind = self.random.choices(list(WEIGHTS), WEIGHTS.values())[0]
        have = [n for n in slots if n in self.groups]
        if kind in ("train", "model"):
            return self.about_model(kind, models) if models else "look()"
        if kind == "limit":
            text = self.random.choice(LIMIT if alone else LIMIT[:3])
            return text.format(share=self.random.choice([1, 1, 1.5, 2]))
        if kind == "make" or len(have) < 3:
            return self.make(slots)
        n, a, b = self.random.choice(slots), self.random.choice(have), self.random.choice(have)
        templates = {
            "unary": UNARY,
            "binary": BINARY,
            "in_place": IN_PLACE,
            "view": VIEWS,
            "raw": RAW,
            "file": FILES,
            "wrong": WRONG,
            "free": FREE,
        }
        if kind == "saved":
            template = (
                "saved({a}, path('saved{n}'), '" + self.random.choice(["pickle", "memory", "file", "mmap"]) + "')"
            )
        elif kind == "copy":
            template = self.random.choice(
                ["{a}.clone()", "__import__('copy').deepcopy({a})", "{a}.clone().share_memory_().clone()", "{a} + 1"]
            )
        else:
            template = self.random.choice(templates[kind])
        low = self.random.choice([0, 0, 1, 250, 499])
        text = template.format(
            a=f"t[{a}]",
            b=f"t[{b}]",
            n=a if kind == "free" else n,
            seed=self.random.randrange(99),
            low=low,
            high=self.random.choice([500, 750, 999, 1000, 1000]),
            type=self.random.choice(TYPES[:12]),
            name=f"f{slots[0]}",
            write=self.random.choice(["tofile", "buffered", "write", "pwrite", "writev", "pwritev"]),
            read=self.random.choice(["fromfile", "buffered", "readinto", "preadv", "mmap"]),
        )
        if kind in ("unary", "binary", "view", "saved", "copy"):
            # Many operators give their input back when there is nothing to do.
            self.groups[n] = self.groups[a] if kind != "saved" and "clone" not in template else self.new_group()
            return f"t[{n}] = {text}"
        return text

    def new_group(self):
        self.made += 1
        return self.made

    def make(self, slots):
        n, type_ = self.random.choice(slots), self.random.choice(TYPES)
        self.groups[n] = self.new_group()
        shape, seed = self.shape(type_), self.random.randrange(99)
        texts = [f"random({shape}, {seed}, '{type_}')"] * 4
        texts += [
            f"counted({shape}, '{type_}')",
            f"torch.full({shape}, 1, dtype=torch.{type_})",
            f"torch.zeros({shape}, dtype=torch.{type_})",
        ]
        texts += [
            f"torch.from_numpy(np.ones({shape}, np.float32))",
            f"torch.empty({shape}, dtype=torch.{type_}).fill_(1)",
        ]
        return f"t[{n}] = {self.random.choice(texts)}"

    def about_model(self, kind, models):
        k = self.random.choice(models)
        if kind == "model" or k not in self.models:
            self.models.add(k)
            body = self.random.choice(["linear", "linear", "lstm", "transformer", "convolutions", "sparse"])
            width = self.random.choice([64, 128, 180, 184, 256] + ([] if body in ("lstm", "transformer") else [384]))
            layers, optimizer = self.random.randint(1, 4), self.random.choice(OPTIMIZERS)
            return f"m[{k}] = Training({body!r}, {width}, {layers}, {optimizer!r}, {self.random.randrange(99)})"
        flags = {f"flag{n}": self.random.random() < 0.3 for n in ("", 2, 3, 4)}
        return self.random.choice(TRAIN).format(k=k, count=self.random.randint(1, 2), **flags)

    def body(self, slots, models, most=6, alone=False):
        return tuple(self.statement(slots, models, alone) for _ in range(self.random.randint(1, most)))

    def block(self):
        kind = self.random.choice(["threads", "threads", "fork", "signals"])
        everything, models = list(range(SLOTS)), list(range(MODELS))
        if kind == "signals":
            return Block(kind, (self.body(everything, models),))
        if kind == "fork":
            groups, made = dict(self.groups), set(self.models)  # what the child does stays there
            child = self.body(everything, models)
            self.groups, self.models = groups, made
            return Block(kind, (child, self.body(everything, models)))
        count = self.random.randint(2, 3)
        owner = {group: self.random.randrange(count) for group in set(self.groups.values())}
        owners = [owner[self.groups[n]] if n in self.groups else self.random.randrange(count) for n in everything]
        bodies = []
        for which in range(count):
            mine = [n for n in everything if owners[n] == which]
            if mine:
                bodies.append(self.body(mine, [k for k in models if k % count == which], most=8))
        return Block(kind, tuple(bodies))


def program(seed):
    chance = random.Random(f"options {seed}")
    memory = chance.choice(LIMITS)
    writer = Writer(f"statements {seed}", memory)
    everything, models = list(range(SLOTS)), list(range(MODELS))
    statements = [writer.make([n]) for n in range(chance.randint(3, SLOTS))]
    for _ in range(chance.choice([8, 15, 25, 40])):
        statements.append(writer.block() if chance.random() < 0.1 else writer.statement(everything, models))
    options = {
        "checksums": chance.random() < 0.3,
        "deferred_updates": chance.random() < 0.7,
        "recorded": chance.random() < 0.2,
    }
    return Program(
        memory=memory,
        threads=chance.choice([1, 1, 2]),
        eagerly=chance.random() < 0.4,
        disks=chance.choice([1, 1, 2, 3]),
        options=options,
        ends_by_itself=chance.random() < 0.2,
        statements=tuple(statements),
    )
