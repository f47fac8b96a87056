"""What the tests of others' programs share: a small language model, its data, and an offline tokenizer."""

import torch
from torch.utils.data import Dataset

WORDS = 512


class Sentences(Dataset):
    """Random rows of tokens, made anew whenever they are asked for."""

    def __init__(self, rows=24, length=24):
        self.rows, self.length = rows, length

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        if index >= self.rows:  # for those who iterate
            raise IndexError
        tokens = torch.randint(0, WORDS, (self.length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def small_llama(layers=4, width=128, seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def small_tokenizer():
    """Every word is one of `WORDS` tokens; needs no file."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"w{n}": n for n in range(4, WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def sentence(seed, words=16):
    numbers = torch.randint(4, WORDS, (words,), generator=torch.Generator().manual_seed(seed))
    return " ".join(f"w{number}" for number in numbers.tolist())
