"""Our tokenizers beside the PyPI packages `tokenizers` and `sentencepiece`: the same ids, and the same text from them.

compare_tokenizers.py does the same on a million lines.
"""

import argparse
import json
import os
import pathlib
import statistics

import compare_tokenizers
import pytest
import tokenizer_models
import tokenizers
import transformers
from tokenizer_probe import ask, escape, needs_probe, run
from tokenizers import models, pre_tokenizers, trainers

pytestmark = needs_probe

SEED = int(os.environ.get("BOTTOMLESS_SEED", "20261117"))
LINES = 1700  # for each of the twelve


@pytest.mark.parametrize("name", [*tokenizer_models.JSON_MODELS, *tokenizer_models.SENTENCEPIECE_MODELS])
def test_ids_and_text_are_those_of_pypi(name):
    assert compare_tokenizers.compare(None, name, LINES, SEED) == 0


@pytest.mark.parametrize("name", [*tokenizer_models.JSON_MODELS, *tokenizer_models.SENTENCEPIECE_MODELS])
def test_long_texts_are_cut_as_pypi_cuts_them(tmp_path, name):
    """Sums over tens of thousands of pieces are rounded as there."""
    texts = [pathlib.Path(module.__file__).read_text() for module in (argparse, pathlib, statistics)]
    oracle = compare_tokenizers.Oracle(name, tmp_path)
    assert [*compare_tokenizers.differences(None, oracle, texts)] == []


def all_characters():
    """All but the planes that Unicode leaves empty or to private use."""
    codes = [*range(0xD800), *range(0xE000, 0x33480), *range(0xE0000, 0xE0200)]
    return [chr(code) for code in codes if chr(code) not in "\n\\\x1f"]


def test_every_character_is_of_the_category_that_pypi_has():
    """The two engines of regular expressions know different versions of Unicode; see src/unicode/stand_ins.h."""
    characters = all_characters()
    texts = ["".join(characters[i : i + 4096]) for i in range(0, len(characters), 4096)]
    for category in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf".split():
        split = pre_tokenizers.Split(tokenizers.Regex(rf"\p{{{category}}}"), "removed", invert=True)
        ours = ask("words", split.__getstate__().decode(), texts)
        for text, words in zip(texts, ours):
            theirs = "".join(word for word, _ in split.pre_tokenize_str(text))
            assert words.replace("\x1f", "") == theirs, category


def test_every_character_is_a_number_where_pypi_has_one():
    """Digits asks Rust, which knows a newer Unicode than the regular expressions do."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    characters = all_characters()
    texts = ["a".join(characters[i : i + 4096]) for i in range(0, len(characters), 4096)]
    ours = ask("words", digits.__getstate__().decode(), texts)
    assert ours == ["\x1f".join(word for word, _ in digits.pre_tokenize_str(text)) for text in texts]


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"])
def test_every_character_is_normalised_as_pypi_does(tmp_path, form):
    """Alone, and between marks that it may move past or compose with; see src/unicode/forms.cc."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.normalizer = getattr(tokenizers.normalizers, form)()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    characters = all_characters()
    texts = [
        "".join(f"a{one}\u0334 a\u0345{one} a{one}\u0315 \ud2f0{one} " for one in characters[i : i + 512]) for i in range(0, len(characters), 512)
    ]
    theirs = [" ".join(map(str, one.ids)) for one in tokenizer.encode_batch_fast(texts)]
    ours = ask("ids", tmp_path, texts)
    different = [index for index, (one, other) in enumerate(zip(theirs, ours)) if one != other]
    assert not different


@pytest.mark.parametrize("behaviour", ["removed", "isolated", "contiguous", "merged_with_previous", "merged_with_next"])
@pytest.mark.parametrize("invert", [False, True])
def test_words_are_cut_as_pypi_cuts_them(behaviour, invert):
    texts = ["a-b", "--a--b--", "-", "", "ab", "a -- b", "-a", "a-"]
    for pattern in ["-", tokenizers.Regex("-"), tokenizers.Regex("[-a]+"), tokenizers.Regex(r"\s+$|^a")]:
        split = pre_tokenizers.Split(pattern, behaviour, invert)
        ours = ask("words", split.__getstate__().decode(), texts)
        assert ours == ["\x1f".join(word for word, _ in split.pre_tokenize_str(text)) for text in texts], (behaviour, pattern)


def test_ill_formed_text_is_read_with_replacement_characters(tmp_path):
    tokenizer_models.make_json("gpt2", tmp_path)
    ill_formed = [b"a\xff b", b"\xc3", b"\xe2\x82", b"\xe2\x82x", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xf0\x9f\x98 \xf0\x9f\x98\x80"]
    assert ask("ids", tmp_path, ill_formed) == ask("ids", tmp_path, [line.decode("utf-8", "replace") for line in ill_formed])


def test_ids_that_do_not_exist_are_left_out(tmp_path):
    oracle = tokenizer_models.make_json("gpt2", tmp_path)
    assert ask("text", tmp_path, ["65 99999999 66 -1"]) == [oracle.decode([65, 66])]


def test_what_the_files_beside_a_vocabulary_say(tmp_path):
    tokenizer_models.make_json("llama3", tmp_path)
    config = {"bos_token": {"content": "<|begin_of_text|>"}, "chat_template": [{"name": "default", "template": "one\ntwo"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    facts = dict(line.split(" ", 1) for line in run("facts", tmp_path).stdout.decode().splitlines())
    assert facts == {"vocabulary": "3000", "bos": "0", "eos": "7", "pad": "none", "adds_bos": "1", "adds_eos": "0",
                     "chat_template": "one\\ntwo"}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False, "pad_token": "<|endoftext|>"}))
    (tmp_path / "chat_template.jinja").write_text("three")
    facts = dict(line.split(" ", 1) for line in run("facts", tmp_path).stdout.decode().splitlines())
    assert facts["adds_bos"] == "0" and facts["pad"] == "1" and facts["chat_template"] == "three"


def test_tokens_that_were_added_to_a_sentencepiece_model_are_found(tmp_path):
    model = tokenizer_models.make_sentencepiece("bpe", tmp_path)
    size = model.get_piece_size()
    added = {str(size): {"content": "<extra>", "lstrip": False, "rstrip": False, "normalized": False, "special": True}}
    for legacy in [True, False]:
        config = {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": added, "legacy": legacy}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        ids = transformers.AutoTokenizer.from_pretrained(tmp_path)("hello<extra>world", add_special_tokens=False).input_ids
        assert (ids == model.encode("hello") + [size] + model.encode("world")) == legacy
        assert ask("ids", tmp_path, ["hello<extra>world"]) == [" ".join(map(str, ids))]
    facts = run("facts", tmp_path).stdout.decode()
    assert f"vocabulary {size + 1}\nbos 1\neos 2\npad none\nadds_bos 1\n" in facts


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path):
    def message(content, name="tokenizer.json"):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        done = run("facts", tmp_path)
        (tmp_path / name).unlink()
        assert done.returncode == 1
        return done.stderr.decode()

    assert "neither tokenizer.json nor tokenizer.model" in run("facts", tmp_path).stderr.decode()
    plain = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
    assert "parse error" in message(b"{")
    assert "'WordPiece' is not supported" in message({"model": {"type": "WordPiece"}})
    assert "'BertNormalizer' is not supported" in message(plain | {"normalizer": {"type": "BertNormalizer"}})
    assert "'Whitespace' is not supported" in message(plain | {"pre_tokenizer": {"type": "Whitespace"}})
    assert "'WordPiece' is not supported" in message(plain | {"decoder": {"type": "WordPiece"}})
    assert "'BertProcessing' is not supported" in message(plain | {"post_processor": {"type": "BertProcessing"}})
    assert "'\\w' is not supported" in message(
        plain | {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w"}, "behavior": "Isolated", "invert": False}}
    )
    assert "merge of 'a' and 'b'" in message({"model": plain["model"] | {"merges": ["a b"]}})
    assert "no model of sentencepiece" in message(b"\x01\x02", "tokenizer.model")


def test_learning_gives_the_tokenizer_that_pypi_learns(tmp_path):
    texts = ["".join(tokenizer_models.lines(2000, seed=SEED)), "", *(path.read_text() for path in sorted(tokenizer_models.SOURCES)[:40])]
    files = []
    for index, text in enumerate(texts):
        files.append(tmp_path / f"{index}.txt")
        files[-1].write_bytes(text.encode())
    done = run("train", tmp_path, 3000, asked="".join(f"{escape(str(file))}\n" for file in files).encode())
    assert done.returncode == 0, done.stderr
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=3000, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)  # fmt: skip
    theirs.train_from_iterator(texts, trainer)
    expected, learned = json.loads(theirs.to_str())["model"], json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    assert learned["vocab"] == expected["vocab"]
    assert learned["merges"] == expected["merges"]


def test_a_learned_tokenizer_is_read_by_transformers(tmp_path):
    import transformers

    (tmp_path / "text").write_text("the cat sat on the mat, the cat sat\n" * 20)
    assert run("train", tmp_path, 300, asked=f"{tmp_path / 'text'}\n".encode()).returncode == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    line = "the cat <|endoftext|> sät"
    ids = tokenizer.encode(line, add_special_tokens=False)
    assert ask("ids", tmp_path, [line]) == [" ".join(map(str, ids))]
    assert tokenizer.decode(ids) == line == ask("text", tmp_path, [" ".join(map(str, ids))])[0]
    assert tokenizer.eos_token_id == 0


def test_learning_from_nothing_is_refused(tmp_path):
    (tmp_path / "empty").write_text("")
    assert "no text" in run("train", tmp_path, 300, asked=f"{tmp_path / 'empty'}\n".encode()).stderr.decode()
    assert "257" in run("train", tmp_path, 100, asked=f"{tmp_path / 'empty'}\n".encode()).stderr.decode()
    assert "missing" in run("train", tmp_path, 300, asked=f"{tmp_path / 'missing'}\n".encode()).stderr.decode()
    assert not (tmp_path / "tokenizer.json").exists()


def test_tokens_begin_where_pypi_has_them(tmp_path):
    """By its offsets, which count characters: a token that begins within one begins with it."""
    for name in tokenizer_models.JSON_MODELS:
        theirs = tokenizer_models.make_json(name, tmp_path / name)
        texts = list(tokenizer_models.lines(300, SEED))
        ours = ask("places", tmp_path / name, [escape(text) for text in texts])
        compared = different = 0
        for text, line in zip(texts, ours):
            placed = [tuple(map(int, one.split(":"))) for one in line.split()]
            encoding = theirs.encode(text, add_special_tokens=False)
            assert [id for id, _ in placed] == encoding.ids
            begins = [len(text.encode()[:byte].decode(errors="ignore")) for _, byte in placed]
            different += sum(ours != theirs for ours, (theirs, _) in zip(begins, encoding.offsets))
            compared += len(placed)
        assert compared > 1000
        # Of letters and marks that were composed, only where they begin together is told.
        composes = name in ("roberta_like", "qwen2")
        assert different <= (compared / 100 if composes else 0), (name, different, compared)


def test_pieces_begin_where_sentencepiece_has_them(tmp_path):
    for name in tokenizer_models.SENTENCEPIECE_MODELS:
        theirs = tokenizer_models.make_sentencepiece(name, tmp_path / name)
        texts = [text.replace("\0", "") for text in tokenizer_models.lines(300, SEED)]
        ours = ask("places", tmp_path / name, [escape(text) for text in texts])
        for text, line in zip(texts, ours):
            pieces = theirs.encode(text, return_type="proto").pieces
            assert line.split() == [f"{piece.id}:{piece.begin}" for piece in pieces], (name, text)
