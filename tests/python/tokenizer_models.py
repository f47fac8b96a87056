"""Tokenizers made on the spot, without a network, with the settings of well-known models; and text in all scripts.

The vocabularies are small and trained here; what is cut where, normalised and decoded how is written as in the models'
own tokenizer.json. For sentencepiece the same with its own trainer.
"""

import json
import pathlib
import random

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

SOURCES = pathlib.Path(json.__file__).parents[1].glob("*.py")  # text that every machine has

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x2AF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F),
    (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF),
    (0x1780, 0x17FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x20CF), (0x2100, 0x218F), (0x2190, 0x23FF),
    (0x2500, 0x27BF), (0x2C00, 0x2DFF), (0x2E80, 0x2FDF), (0x3000, 0x30FF), (0x3130, 0x33FF), (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF), (0xA640, 0xA7FF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFEFF),
    (0xFF00, 0xFFEF), (0x10000, 0x100FF), (0x10280, 0x103FF), (0x10400, 0x104FF), (0x11000, 0x110CF),
    (0x12000, 0x123FF), (0x13000, 0x1342F), (0x1D400, 0x1D7FF), (0x1F000, 0x1F2FF), (0x1F300, 0x1FAFF),
    (0x20000, 0x2A6DF), (0xE0100, 0xE01EF),
]  # fmt: skip
SPACES = "  \t\n\r\v\f\u0085\u00a0\u1680\u180e\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"
FRAGMENTS = [
    "the quick brown fox", "don't", "I'LL", "we've", "'ſ", "it's", "DON'T", "def f(x):\n    return x + 1\n", "123456789012345",
    "3.14159", "1,000,000", "👩‍👩‍👧‍👦", "🇩🇪", "e\u0301", "ﬁn", "straße", "İstanbul", "ﷺ", "http://a.b/c?d=e&f=g", "   ", "\n\n\n",
    "\t\t", "\r\n", "▁", "▁▁a", "<s>", "</s>", "<|endoftext|>", "<|im_start|>user", "[INST]", "<0x0A>", "Ġ", "\u0000", "\u007f",
    "﷽", "a\u0300\u0301\u0302", "각", "각", "日本語テキスト", "你好，世界！", "Привет, мир", "مرحبا", "שלום", "नमस्ते", "สวัสดี", "…—–", "½²³",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "==========", "\\n", "_x_", "{{ }}",
]  # fmt: skip


def lines(count, seed):
    """Varied text: every line may hold any assigned or unassigned character, but most hold a few scripts."""
    chance = random.Random(seed)
    for _ in range(count):
        parts = []
        scripts = chance.sample(SCRIPTS, 2) + [SCRIPTS[0]]
        for _ in range(chance.randint(0, 12)):
            kind = chance.random()
            if kind < 0.45:
                first, last = chance.choice(scripts)
                parts.append("".join(chr(chance.randint(first, last)) for _ in range(chance.randint(1, 8))))
            elif kind < 0.65:
                parts.append(chance.choice(FRAGMENTS))
            elif kind < 0.80:
                parts.append("".join(chance.choice(SPACES) for _ in range(chance.randint(1, 4))))
            elif kind < 0.86:
                parts.append(str(chance.randint(0, 10 ** chance.randint(1, 18))))
            elif kind < 0.90:
                parts.append(anything(chance))
            else:
                parts.append(" ")
        yield "".join(parts)


def anything(chance):
    while True:
        code = chance.randrange(0x110000)
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def corpus():
    """Text to train on: enough of everything that pairs in many scripts are learned."""
    return list(lines(3000, seed=7)) + [json.__doc__, random.__doc__] * 20


def special(*contents, **properties):
    return [tokenizers.AddedToken(content, special=True, normalized=False, **properties) for content in contents]


def trained(tokenizer, tokens, size, alphabet=()):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=tokens, initial_alphabet=list(alphabet), show_progress=False, limit_alphabet=1000
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def byte_level(pre_tokenizer, tokens, normalizer=None):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer, tokens, 3000, pre_tokenizers.ByteLevel.alphabet())


def split_first(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


def with_byte_pieces(tokenizer, change):
    """The same tokenizer with <0x00> and so on in front, as sentencepiece's models have them, and other changes."""
    description = json.loads(tokenizer.to_str())
    model = description["model"]
    special_tokens = [token["content"] for token in description["added_tokens"]]
    names = special_tokens + [f"<0x{byte:02X}>" for byte in range(256)]
    names += [name for name, _ in sorted(model["vocab"].items(), key=lambda item: item[1]) if name not in names]
    model["vocab"] = {name: index for index, name in enumerate(names)}
    model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    change(description)
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def gpt2():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), special("<|endoftext|>"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta_like():
    """A prefix space, digits apart, and added tokens of every kind."""
    pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    tokenizer = byte_level(pre_tokenizer, special("<|endoftext|>"), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    tokenizer.add_tokens([
        tokenizers.AddedToken("<s>", lstrip=True, normalized=False), tokenizers.AddedToken("</s>", rstrip=True, normalized=False),
        tokenizers.AddedToken("fox", single_word=True, normalized=False), tokenizers.AddedToken("QUICK", normalized=True),
        tokenizers.AddedToken("e\u0301", normalized=True),
    ])  # fmt: skip
    return tokenizer


def llama3():
    tokenizer = byte_level(split_first(LLAMA3), special("<|begin_of_text|>", "<|endoftext|>"))
    description = json.loads(tokenizer.to_str())
    description["model"]["ignore_merges"] = True
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B", special_tokens=[("<|begin_of_text|>", 0)]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen2():
    return byte_level(split_first(QWEN2), special("<|endoftext|>", "<|im_start|>", "<|im_end|>"), normalizers.NFC())


def llama2():
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trained(tokenizer, special("<unk>", "<s>", "</s>"), 3000)

    def change(description):
        description["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}  # fmt: skip
        description["pre_tokenizer"] = None
        description["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}  # fmt: skip
        description["post_processor"] = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}  # fmt: skip

    return with_byte_pieces(tokenizer, change)


def mistral(scheme="first", split=False):
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trained(tokenizer, special("<unk>", "<s>", "</s>", "[INST]"), 3000)

    def change(description):
        description["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
        description["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}

    return with_byte_pieces(tokenizer, change)


def unknowns():
    """Without bytes to fall back to: characters that were not seen are unknown, and runs of them fuse."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return trained(tokenizer, special("<unk>"), 1500)


JSON_MODELS = {
    "gpt2": gpt2, "roberta_like": roberta_like, "llama3": llama3, "qwen2": qwen2, "llama2": llama2, "mistral": mistral,
    "metaspace_always": lambda: mistral("always", split=True), "unknowns": unknowns,
}  # fmt: skip

SENTENCEPIECE_MODELS = {
    # Llama's and Mistral's options of training.
    "bpe": {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False, "add_dummy_prefix": True},
    "bpe_symbols": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "nfkc",
                    "user_defined_symbols": ["<|im_start|>", "fox", "  "]},
    # T5's, and what sentencepiece does when nothing is said.
    "unigram": {"model_type": "unigram"},
    "unigram_bytes": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "nmt_nfkc_cf",
                      "user_defined_symbols": ["[INST]", "quick"], "pad_id": 3},
}  # fmt: skip


def make_sentencepiece(name, directory):
    import sentencepiece

    directory.mkdir(parents=True, exist_ok=True)
    # Fewer characters than corpus() has: nearly all of those seen must fit into the vocabulary.
    seen = [*lines(400, seed=7), *FRAGMENTS, *map(" ".join, zip(FRAGMENTS, FRAGMENTS[1:])), json.__doc__, random.__doc__] * 5
    sentences = [line for text in seen for line in text.replace("\0", "").splitlines() if line.strip()]
    with open(directory / "tokenizer.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=file, vocab_size=4000, character_coverage=0.98, minloglevel=2,
            hard_vocab_limit=False, num_threads=1, **SENTENCEPIECE_MODELS[name],
        )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))


def make_json(name, directory):
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = JSON_MODELS[name]()
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
