"""`bottomless train` on several ranks, as torchrun starts them: the same training, and checkpoints that any number of ranks continues."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
from helpers import HANGS, check_moved, run, wait_until

transformers = pytest.importorskip("transformers")

BINARY = pathlib.Path(sys.executable).parent / "bottomless"
# A constant rate, so that how many steps a run has does not matter for the first ones.
SMALL = ["--length", "64", "--vocabulary", "600", "--lr", "0.001", "--schedule", "constant", "--warm-up", "0"]
LIMIT = ["--memory", "32MiB"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    for name in ["decoder.py", "encoder.py", "scanner.py"]:
        (directory / name).write_text(pathlib.Path(json.__file__).with_name(name).read_text())
    return directory


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(count, data, out, *options, model="gpt-10m"):
    """A process for each rank, as torchrun starts them."""
    command = [BINARY, "train", "--model", model, "--data", data, "--out", out, "--json", *SMALL, *options]
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return [
        subprocess.Popen(
            [str(word) for word in command], env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )
        for rank in range(count)
    ]  # fmt: skip


def finish(processes, timeout=HANGS):
    """Code, output and messages of each; one that hangs is ended and fails the test."""
    deadline = time.monotonic() + timeout
    ended = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            out, err = process.communicate()
            err += "\nended by the test"
        ended.append((process.returncode, out, err))
    return ended


def train(count, data, out, *options, **which):
    """What the first rank says of a run that ends well; the others say nothing."""
    ended = finish(start(count, data, out, *options, **which))
    assert [code for code, _, _ in ended] == [0] * count, ended
    assert all(out == "" for _, out, _ in ended[1:])
    outcome = json.loads(ended[0][1].splitlines()[-1])
    for stats in outcome["ranks"] if count > 1 else [outcome["stats"]]:
        check_moved(stats)
    return outcome


def curve(out, name="loss"):
    steps = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [step[name] for step in steps if name in step]


def near(values):
    return pytest.approx(values, rel=1e-4)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """Four steps of four rows by one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train(1, data, out, "--steps", 4, "--accumulate", 4, "--eval", 0.4, "--eval-every", 4, *LIMIT)
    return out


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_ranks_train_as_one_process_does(data, alone, tmp_path, stage):
    outcome = train(2, data, tmp_path / "run", "--steps", 4, "--accumulate", 2, "--stage", stage, "--eval", 0.4, "--eval-every", 4, *LIMIT)
    assert curve(tmp_path / "run") == near(curve(alone))
    assert curve(tmp_path / "run", "gradient_norm") == near(curve(alone, "gradient_norm"))
    assert curve(tmp_path / "run", "tokens") == curve(alone, "tokens") == [256, 512, 768, 1024]
    assert curve(tmp_path / "run", "evaluation_loss") == near(curve(alone, "evaluation_loss"))
    assert len(curve(alone, "evaluation_loss")) == 1
    assert outcome["steps"] == 4
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(alone / "model").state_dict()
    assert all((value - theirs[name]).abs().max() < 1e-4 for name, value in ours.items())


@pytest.mark.parametrize("before, then", [(2, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("states", ["float32", "8bit"])
def test_any_number_of_ranks_continues(data, tmp_path, before, then, states):
    rows = 6
    options = ["--states", states, *LIMIT]
    train(1, data, tmp_path / "whole", "--steps", 4, "--accumulate", rows, *options)
    train(before, data, tmp_path / "run", "--steps", 2, "--accumulate", rows // before, *options)
    verified = run([BINARY, "verify", tmp_path / "run"])
    assert verified.code == 0, verified.err
    train(then, data, tmp_path / "run", "--steps", 4, "--accumulate", rows // then, "--resume", *options)
    assert curve(tmp_path / "run") == near(curve(tmp_path / "whole"))


def test_adapters_of_a_frozen_model_are_sharded(data, alone, tmp_path):
    lora, base = ["--lora", 4, "--merge", "--memory", "20MiB"], alone / "model"
    train(1, data, tmp_path / "whole", "--steps", 3, "--accumulate", 4, *lora, model=base)
    train(2, data, tmp_path / "run", "--steps", 2, "--accumulate", 2, *lora, model=base)
    train(2, data, tmp_path / "run", "--steps", 3, "--accumulate", 2, "--resume", *lora, model=base)
    assert curve(tmp_path / "run") == near(curve(tmp_path / "whole"))
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "model").state_dict()
    assert all((value - theirs[name]).abs().max() < 1e-4 for name, value in ours.items())


def test_a_signal_to_one_rank_stops_all(data, tmp_path):
    out = tmp_path / "run"
    processes = start(2, data, out, "--steps", 10000, *LIMIT)
    metrics = out / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 1, processes[1])
    processes[1].send_signal(signal.SIGTERM)
    ended = finish(processes)
    assert [code for code, _, _ in ended] == [128 + signal.SIGTERM] * 2, ended
    assert "--resume goes on" in ended[0][2]
    assert (out / "checkpoint" / "manifest.json").exists()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_rank_receives_what_the_estimate_says(data, tmp_path, stage):
    """Within a tenth. At stage 3 the second gather of a step, a third of all, is left out for parameters that happen to be in memory."""
    outcome = train(2, data, tmp_path / "run", "--steps", 8, "--accumulate", 2, "--stage", stage, *LIMIT)
    received = curve(tmp_path / "run", "received_bytes")
    measured = (received[-1] - received[3]) / (len(received) - 4)
    estimated = outcome["estimate"]["received_bytes"]
    least = estimated * 2 / 3 if stage == 3 else estimated
    assert 0.9 * least <= measured <= 1.1 * estimated
    assert outcome["estimate"]["network_seconds"] > 0


def first_line(process, part):
    """Reads what a rank says until that is in it."""
    for line in process.stderr:
        if part in line:
            return
    pytest.fail(f"it has never said '{part}'")


@pytest.fixture(scope="module")
def much_data(tmp_path_factory):
    """A rank is at it for a while."""
    file = tmp_path_factory.mktemp("much") / "sources.py"
    sources = sorted(pathlib.Path(json.__file__).parents[1].glob("*.py"))
    file.write_text("\n".join(source.read_text(errors="replace") for source in sources) * 4)
    return file


@pytest.mark.parametrize("how, deadline, said", [(signal.SIGSTOP, 2, "(the deadline)"), (signal.SIGKILL, 600, "rank 0 has ended")])
def test_who_waits_for_the_first_rank_before_the_first_step_hears_of_its_end(much_data, tmp_path, how, deadline, said):
    processes = start(2, much_data, tmp_path / "run", "--steps", 1, "--deadline", deadline, *LIMIT)
    first_line(processes[0], "training a tokenizer")
    processes[0].send_signal(how)
    code, _, err = finish(processes[1:])[0]
    processes[0].kill()
    finish(processes[:1])
    last = err.splitlines()[-1]
    assert code == 1, err
    assert "train on 2 ranks: " in last and said in last and "rank 0" in last, last
    assert "before step 1, waiting for rank 0: opening or training the tokenizer" in last, last


def test_one_rank_speaks_for_all(data, tmp_path):
    ended = finish(start(2, tmp_path / "missing.txt", tmp_path / "run", "--steps", 1))
    assert [code for code, _, _ in ended] == [1, 1]
    assert "missing.txt" in ended[0][2].splitlines()[-1] and ended[1][2] == ""


def test_a_rank_that_is_killed_ends_the_others(data, tmp_path):
    out = tmp_path / "run"
    processes = start(2, data, out, "--steps", 10000, *LIMIT)
    wait_until((out / "metrics.jsonl").exists, processes[1])
    processes[1].kill()
    ended = finish(processes)
    assert ended[0][0] == 1
    assert "rank" in ended[0][2].splitlines()[-1]
