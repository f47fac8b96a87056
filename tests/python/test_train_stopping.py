"""Stopping `bottomless train`, and what is on the disk then: signals, exit codes, checkpoints by time."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from helpers import HANGS, run

BINARY = pathlib.Path(sys.executable).parent / "bottomless"
ENDLESS = ["--steps", "100000", "--length", "32", "--vocabulary", "600"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "sources.py"
    file.write_text(pathlib.Path(json.__file__).with_name("decoder.py").read_text())
    return file


def command(data, out, *options):
    return [str(word) for word in [BINARY, "train", "--model", "gpt-10m", "--data", data, "--out", out, *ENDLESS, *options]]


class Stopped:
    """A run that is sent a signal after its first step, and all that it says."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.said = ""
        self.read_until("step 1 ")

    def read_until(self, part):
        while part not in self.said:
            line = self.process.stderr.readline()
            assert line, f"'{part}' was never said: {self.said}"
            self.said += line

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        self.said += self.process.communicate(timeout=HANGS)[1]
        return self.process.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_acknowledged_and_its_number_is_in_the_exit_code(data, tmp_path, number):
    stopped = Stopped(command(data, tmp_path / "run"))
    stopped.signal(number)
    stopped.read_until("bottomless: stopping after this step; again to stop now, there is no checkpoint yet\n")
    assert stopped.end() == 128 + number, stopped.said
    assert "--resume goes on" in stopped.said
    assert (tmp_path / "run" / "checkpoint" / "manifest.json").exists()
    assert not (tmp_path / "run" / "model").exists()
    # One that goes on says which checkpoint there is.
    step = json.loads((tmp_path / "run" / "checkpoint" / "manifest.json").read_text())["step"]
    again = subprocess.Popen(command(data, tmp_path / "run", "--resume"), stderr=subprocess.PIPE, text=True)
    said = ""
    for line in again.stderr:
        said += line
        if f"step {step + 1} " in line:
            again.send_signal(number)
            break
    said += again.communicate(timeout=HANGS)[1]
    assert again.returncode == 128 + number, said
    assert f"again to stop now, the last checkpoint is step {step}\n" in said, said


@pytest.mark.parametrize("first, second", [(signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_it_at_once_and_the_last_checkpoint_is_whole(data, tmp_path, first, second):
    out = tmp_path / "run"
    stopped = Stopped(command(data, out, "--save-every", "1"))
    while (out / "metrics.jsonl").read_text().count("\n") < 2:  # the second step is done, so the first is saved
        assert stopped.process.poll() is None
        time.sleep(0.01)
    stopped.signal(first)
    stopped.read_until("stopping after this step")
    stopped.signal(second)
    code = stopped.end()
    # Between the two the step may have ended.
    assert code in (-second, 128 + first), stopped.said
    assert int(re.search(r"the last checkpoint is step (\d+)", stopped.said)[1]) >= 1
    verified = run([BINARY, "verify", out])
    assert verified.code == 0, verified.err


def test_checkpoints_are_written_by_time_and_two_are_kept(data, tmp_path):
    out = tmp_path / "run"
    words = command(data, out, "--save-minutes", "1e-9")
    words[words.index("--steps") + 1] = "3"
    outcome = run(words)
    assert outcome.code == 0, outcome.err
    manifests = [json.loads((out / "checkpoint" / name).read_text()) for name in ["manifest.json", "manifest-previous.json"]]
    assert [manifest["step"] for manifest in manifests] == [3, 2]
    named = {file["name"] for manifest in manifests for file in manifest["files"]}
    assert {file.name for file in (out / "checkpoint").glob("*.safetensors")} == named and len(named) == 2
    one = sum(file["bytes"] for file in manifests[0]["files"])
    assert re.search(r"^checkpoints +[0-9.]+ MiB for the last two and the next one; .* are free there$", outcome.err, re.MULTILINE)
    outcome = run([*words, "--resume", "--dry-run", "--json"])
    assert outcome.code == 0, outcome.err
    assert outcome.stats["estimate"]["checkpoint_bytes"] == pytest.approx(one, rel=0.01)


def test_a_damaged_checkpoint_names_the_one_before_and_its_advice_works(data, tmp_path):
    out = tmp_path / "run"
    words = command(data, out, "--save-every", "1")
    words[words.index("--steps") + 1] = "3"
    assert run(words).code == 0
    manifest = json.loads((out / "checkpoint" / "manifest.json").read_text())
    file = out / "checkpoint" / manifest["files"][0]["name"]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    words[words.index("--steps") + 1] = "4"
    outcome = run([*words, "--resume"])
    assert outcome.code == 1
    advice = re.search(r"of step 2, is there: (mv '.*' '.*'), then --resume goes on", outcome.err)
    assert advice, outcome.err
    assert subprocess.run(advice[1], shell=True, check=False).returncode == 0
    outcome = run([*words, "--resume"])
    assert outcome.code == 0, outcome.err
    assert "resuming after step 2" in outcome.err
    assert run([BINARY, "verify", out]).code == 0


def test_half_an_hour_is_the_default():
    outcome = run([BINARY, "train", "--help"])
    assert re.search(r"--save-minutes FLOAT:from 0=30", outcome.out), outcome.out
