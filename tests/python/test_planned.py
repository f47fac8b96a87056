"""Movement ahead of use, as a user sees it: in the counters, in reports and traces, in what `plan` and `bench` say."""

import json
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import bottomless
from helpers import MIB, bottomless_run, fingerprints, run, run_limited

WIDTH = 512  # a weight of 1 MiB
MEMORY = "20MiB"

SCRIPT = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(12)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(int(sys.argv[1])):
    model(torch.randn(256, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, flush=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def words(verb, *arguments):
    return [bottomless_run()[0], verb, *arguments]


needs_binary = pytest.mark.skipif(bottomless_run()[0] == sys.executable, reason="the command is not installed")


def make():
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(12)])


def counted(runtime, work):
    before = runtime.stats()
    work()
    after = runtime.stats()
    return {
        name: after[name] - before[name]
        for name in ("planned_fetches", "demand_fetches", "faults", "evictions", "plan_departures")
    }


def test_steady_state_is_planned(disk):
    """From the fourth step on hardly anything is fetched that was not planned, and nothing by a fault."""
    with bottomless.limit(MEMORY, disk) as runtime:
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def step():
            model(torch.randn(64, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(5):
            step()
        counts = counted(runtime, lambda: [step() for _ in range(5)])
    assert counts["evictions"] > 0 and counts["planned_fetches"] > 0, counts
    assert counts["faults"] == 0 and counts["plan_departures"] == 0, counts
    assert counts["demand_fetches"] <= 0.1 * counts["planned_fetches"], counts


@pytest.mark.parametrize("every", [0, 3])
def test_a_loop_without_an_optimizer(disk, every):
    """Nobody marks its steps; they are found from what repeats."""

    def work(runtime=None):
        torch.manual_seed(5)
        model = make()
        counts = {}

        def step(number):
            model(torch.randn(64, WIDTH)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
                if every and number % every == 0:
                    model(torch.randn(32, WIDTH)).abs().mean().item()

        for number in range(8):
            step(number)
        if runtime is not None:
            counts = counted(runtime, lambda: [step(number) for number in range(8, 16)])
        else:
            for number in range(8, 16):
                step(number)
        return fingerprints(dict(model.named_parameters())), counts

    plain, _ = work()
    with bottomless.limit("16MiB", disk) as runtime:
        limited, counts = work(runtime)
    assert limited == plain
    assert counts["evictions"] > 0 and counts["planned_fetches"] > counts["demand_fetches"], counts


def test_kinds_of_steps_side_by_side(disk):
    """Training, evaluation and accumulation take turns; each is known after it was seen."""
    with bottomless.limit("24MiB", disk) as runtime:
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def turn():
            for _ in range(2):
                model(torch.randn(64, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model(torch.randn(64, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model(torch.randn(8, WIDTH))

        for _ in range(6):
            turn()
        counts = counted(runtime, lambda: [turn() for _ in range(4)])
    assert counts["evictions"] > 0 and counts["planned_fetches"] > 3 * counts["demand_fetches"], counts


@needs_binary
def test_report_and_trace(script, tmp_path, disk):
    page, trace = tmp_path / "out.html", tmp_path / "out.json"
    outcome = run_limited([script, "6"], MEMORY, disk, "--report", page, "--trace", trace)
    assert outcome.code == 0 and outcome.out.split() == list("012345"), outcome
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "aten::" in text and "<svg" in text
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)  # one page, nothing from elsewhere
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("aten::") and event["ph"] == "X" for event in events)

    explained = run(words("plan", "--explain", trace))
    assert explained.code == 0 and "as it ran" in explained.out and "parameter" in explained.out, explained
    found = json.loads(run(words("plan", "--json", trace)).out)
    assert found["read_bytes"] > 0 and found["least_bytes"] > 0 and found["forecasts"]
    again = tmp_path / "again.html"
    assert run(words("plan", "--report", again, trace)).code == 0
    assert again.read_text().startswith("<!doctype html>")


@needs_binary
@pytest.mark.parametrize("memory", [MEMORY, "512MiB"])
def test_plan_for_a_script(script, disk, memory):
    """It runs for four steps; what it prints is not mixed with the answer."""
    outcome = run(words("plan", "--json", "--memory", memory, "--disk", disk, script, "100"))
    assert outcome.code == 0, outcome
    found = json.loads(outcome.out)
    assert outcome.err.split() == ["0", "1", "2"], outcome  # the last ends before it can print
    assert 40 * MIB < found["needed_bytes"] < 70 * MIB
    if memory == MEMORY:
        assert found["read_bytes"] > 0
        assert found["forecasts"][0]["read_bytes"] > 0 and found["forecasts"][0]["step_seconds"] > 0
    else:
        assert found["read_bytes"] == 0 and "with less than" in found["verdict"]


@needs_binary
@pytest.mark.parametrize(
    "arguments, code, said",
    [
        ([], 2, "name a trace"),
        (["train.py"], 2, "say --memory and --disk"),
        (["missing.json"], 1, "cannot be read"),
        (["broken.json", "--explain"], 2, "options come before"),
        (["--memory", "1GiB", "broken.json"], 2, "has run already"),
        (["--memory", "64MiB", "--disk", ".", "quiet.py"], 1, "as far as the end of its step"),
        (["broken.json"], 1, "broken.json"),
        (["--memory", "64MiB", "--disk", ".", "stops.py"], 1, "as far as the end of its step"),
    ],
)
def test_plan_refuses(tmp_path, arguments, code, said):
    (tmp_path / "broken.json").write_text('{"traceEvents": []}')
    (tmp_path / "stops.py").write_text("raise SystemExit(3)")
    (tmp_path / "quiet.py").write_text("pass")
    outcome = run(words("plan", *arguments), cwd=tmp_path)
    assert outcome.code == code and said in outcome.err, outcome


@needs_binary
@pytest.mark.parametrize("option", ["--report", "--trace"])
def test_a_file_that_cannot_be_written_is_told_at_once(script, disk, option):
    for file in (disk, f"{disk}/nowhere/out"):
        done = run(words("run", "--memory", MEMORY, "--disk", disk, option, file, str(script), "9"))
        assert done.code != 0 and option in done.err and not done.out, done


@needs_binary
def test_steps_end_a_program(script, disk):
    outcome = run_limited([script, "100"], MEMORY, disk, "--steps", "3", "--json")
    assert outcome.code == 0 and outcome.lines == ["0", "1"] and outcome.stats["steps"] == 3, outcome


@needs_binary
def test_bench_train(disk):
    command = words("bench", "train", "--model", "6M", "--sequence", "16", "--share", "1/2", "--rounds", "1")
    command += ["--steps", "1", "--warm-up", "1", "--disk", disk, "--no-clip", "--update-in-backward", "--json"]
    outcome = run(command)
    assert outcome.code == 0, outcome
    rows = {row["run"]: row for row in json.loads(outcome.out)["rows"]}
    assert list(rows)[:4] == [
        "plain PyTorch", "1/2 of it", "1/2 of it, update in backward", "1/2 of it, as paging does"
    ]  # fmt: skip
    for name, row in rows.items():
        assert row["failure"] is None and row["step_seconds"] > 0 and row["losses_equal"], (name, row)
    assert rows["1/2 of it"]["bytes_per_parameter"] > 0
    assert rows["1/2 of it, as paging does"]["planned"] == 0
    refused = subprocess.run(words("bench", "train", "--update-in-backward"), capture_output=True, text=True)
    assert refused.returncode == 2 and "--no-clip" in refused.stderr
