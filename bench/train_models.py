"""Forward and backward passes of a model here and in transformers, taking turns in the same minutes.

    train_models.py [--model gpt2] [--batch 4] [--length 256] [--threads 2] [--rounds 7] [--build build/torch]

Prints the medians of seconds and of processor seconds; the second are the ones to read on a busy machine. The model has
the default sizes of its transformers configuration (GPT-2: 124M) and no dropout.
"""

import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import transformers


class Ours:
    def __init__(self, program, directory, options, *more):
        sizes = [str(options.batch), str(options.length), str(options.threads)]
        self.process = subprocess.Popen(
            [program, directory, *sizes, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return tuple(map(float, self.process.stdout.readline().split()))


class Theirs:
    def __init__(self, model, options):
        self.model = model.train()
        self.tokens = torch.randint(0, model.config.vocab_size, (options.batch, options.length))

    def step(self):
        begin, used = time.perf_counter(), time.process_time()
        self.model(self.tokens, labels=self.tokens).loss.backward()
        self.model.zero_grad()
        return time.perf_counter() - begin, time.process_time() - used


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--build", type=pathlib.Path, default="build/torch")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=NUMBER", help="other sizes than the default ones")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = {key: int(number) for key, number in (word.split("=") for word in options.set)}
    dropouts = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0} if options.model == "gpt2" else {}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(options.model, **sizes, **dropouts)
    )
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        program = options.build / "bench" / "train_models"
        runs = {
            "transformers": Theirs(model, options),
            "bottomless": Ours(program, directory, options),
            "all logits at once": Ours(program, directory, options, "whole"),
        }
        took = {name: [] for name in runs}
        for turn in range(options.rounds + 1):
            for name, side in runs.items():
                seconds = side.step()
                if turn > 0:  # the first one warms up
                    took[name].append(seconds)
        for side in runs.values():
            if isinstance(side, Ours):
                side.process.stdin.close()
                side.process.wait()
    tokens = options.batch * options.length
    for name, seconds in took.items():
        wall, processor = (statistics.median(column) for column in zip(*seconds))
        print(f"{name:20} {wall:7.3f} s {processor:7.3f} processor s {tokens / wall:8.0f} tokens/s")


if __name__ == "__main__":
    main()
