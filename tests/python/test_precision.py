"""bottomless.precision: the choice of compute precision, and training in what was chosen."""

import json
import pathlib
import sys
import warnings

import pytest
import torch
from torch import nn

import bottomless
import bottomless.optim
from bottomless import precision
from helpers import fingerprints, limit, run, run_python, training_state

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
VARIABLE = "BOTTOMLESS_COMPUTE_DTYPE"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch, tmp_path):
    """Nor anything measured: each test has a cache of its own."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(precision, "_chosen", {})


def as_measured(seconds, quiet=True):
    return {dtype: precision._Speed(1 / each, 1 / each, quiet) for dtype, each in seconds.items()}


# --- the choice ---


@pytest.mark.parametrize(
    "seconds, chosen",
    [
        ({F32: 1.0}, F32),
        ({F32: 1.0, BF16: 0.5, F16: 0.4}, BF16),  # needs no scaling, so it goes first
        ({F32: 1.2, BF16: 1.0}, BF16),
        ({F32: 1.19, BF16: 1.0, F16: 1.0}, F32),
        ({F32: 1.0, BF16: 40.0, F16: 0.5}, F16),
        ({F32: 1.0, F16: 0.5}, F16),
        ({F32: 1.0, BF16: 40.0, F16: 50.0}, F32),
    ],
)
def test_narrow_only_if_clearly_faster(seconds, chosen, monkeypatch):
    assert precision.choose(seconds) is chosen
    monkeypatch.setattr(precision, "_measure", lambda device, most: as_measured(seconds))
    assert precision.compute_dtype() is chosen


def test_measured_once_a_device(monkeypatch):
    measured = []
    speeds = as_measured({F32: 1.0, BF16: 0.1})
    monkeypatch.setattr(precision, "_measure", lambda device, most: measured.append(device) or speeds)
    for device in ("cpu", torch.device("cpu"), "meta", "cpu", "meta"):
        assert precision.compute_dtype(device) is BF16
    assert measured == [torch.device("cpu"), torch.device("meta")]


def test_a_measurement_leaves_no_trace():
    before, mode, threads = torch.get_rng_state(), torch.is_grad_enabled(), torch.get_num_threads()
    with torch.autocast("cpu", dtype=BF16):
        seconds = precision.measure()
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is BF16
    assert seconds.keys() == {F32, BF16, F16} and min(seconds.values()) > 0
    assert torch.equal(torch.get_rng_state(), before) and torch.is_grad_enabled() is mode
    assert torch.get_num_threads() == threads
    with torch.no_grad():
        precision.measure()
        assert not torch.is_grad_enabled()


def test_each_type_is_measured_in_itself(monkeypatch):
    """Also inside the program's own autocast, which would have float32 computed in something else."""
    monkeypatch.setattr(precision, "_pass", lambda work, device: (work(), (0.05, 0.05))[1])
    product = torch.Tensor.__matmul__
    types = []
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: types.append(product(a, b).dtype))
    with torch.autocast("cpu", dtype=BF16):
        precision.measure()
    assert set(types) == {F32, BF16, F16} and types.count(F32) >= 3 * 5


# --- virtual machines: (seconds by the wall clock, of the processor) of each pass ---


def virtual(monkeypatch, seconds, busy):
    """Passes last so many seconds on an idle machine, and `busy` times as long by the wall clock beside others."""
    passes = []
    monkeypatch.setattr(precision, "_products", lambda rows, width, dtype, device: (rows, dtype))

    def timed(work, device):
        rows, dtype = work
        alone = seconds[dtype] * rows / 256
        passes.append(dtype)
        return alone * busy(len(passes)), alone

    monkeypatch.setattr(precision, "_pass", timed)
    monkeypatch.setattr(precision, "_can", lambda device, dtype: dtype in seconds)
    return passes


@pytest.mark.parametrize("busy", [lambda n: 1, lambda n: 3, lambda n: 1 + n % 7, lambda n: 20 if n % 2 else 1.2])
@pytest.mark.parametrize(
    "seconds, chosen", [({F32: 0.004, BF16: 0.002, F16: 0.1}, BF16), ({F32: 0.004, BF16: 0.0055}, F32)]
)
def test_a_busy_machine_chooses_as_an_idle_one(seconds, chosen, busy, monkeypatch):
    virtual(monkeypatch, seconds, busy)
    found = precision.measure()
    assert precision.choose(found) is chosen
    assert found[F32] / found[BF16] == pytest.approx(seconds[F32] / seconds[BF16])


def test_busy_machines_are_measured_longer(monkeypatch):
    seconds = {F32: 0.004, BF16: 0.004}
    idle = virtual(monkeypatch, seconds, lambda n: 1)
    precision.measure()
    busy = virtual(monkeypatch, seconds, lambda n: 2)
    precision.measure()
    assert busy.count(F32) > 3 * idle.count(F32)
    assert idle.count(F32) * seconds[F32] < 0.2


def test_a_quiet_measurement_is_kept_for_later_processes(monkeypatch):
    passes = virtual(monkeypatch, {F32: 0.004, BF16: 0.002}, lambda n: 1)
    assert precision.compute_dtype() is BF16
    count = len(passes)
    assert count > 0
    virtual(monkeypatch, {F32: 0.004, BF16: 0.008}, lambda n: 1)
    for _ in range(2):
        precision._chosen.clear()  # as in another process
        assert precision.compute_dtype() is BF16
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # which cannot be written
    precision._chosen.clear()
    assert precision.compute_dtype() is F32


def test_a_busy_measurement_stands_until_a_quiet_one(monkeypatch):
    virtual(monkeypatch, {F32: 0.004, BF16: 0.0032}, lambda n: 4)
    assert precision.compute_dtype() is BF16
    precision._chosen.clear()
    again = virtual(monkeypatch, {F32: 0.004, BF16: 0.0036}, lambda n: 4)
    assert precision.compute_dtype() is BF16 and len(again) > 0
    precision._chosen.clear()
    virtual(monkeypatch, {F32: 0.004, BF16: 0.0036}, lambda n: 1)
    assert precision.compute_dtype() is F32


@pytest.mark.parametrize("numbers", [[], [1.0], [1.0] * 8, [0.0] * 9, [5.0, 4.0, 1.0] + [0.0, 0.0, 1.0] * 2])
def test_what_was_kept_and_makes_no_sense_is_measured_again(numbers, monkeypatch):
    passes = virtual(monkeypatch, {F32: 0.004, BF16: 0.002}, lambda n: 1)
    torch.ops.bottomless.keep_measured(f"torch {torch.__version__}, choice of precision", numbers)
    assert precision.compute_dtype() is BF16 and passes


# --- what a run computes in ---


def test_a_run_keeps_its_type_when_it_is_resumed(tmp_path, monkeypatch):
    virtual(monkeypatch, {F32: 0.004, BF16: 0.002}, lambda n: 1)
    assert precision.keep_in(tmp_path) is BF16
    assert (tmp_path / "compute_dtype").read_text() == "bfloat16\n"
    precision._chosen.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    passes = virtual(monkeypatch, {F32: 0.004, BF16: 0.04}, lambda n: 1)
    assert precision.keep_in(tmp_path) is BF16 and not passes
    assert precision.compute_dtype() is BF16 and not passes
    with precision.autocast():
        assert torch.get_autocast_dtype("cpu") is BF16


def test_a_run_that_computes_in_something_else_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "compute_dtype").write_text("float16\n")
    monkeypatch.setenv(VARIABLE, "bfloat16")
    with pytest.raises(ValueError, match=f"{VARIABLE} is bfloat16, and the run in .* computes in float16: unset it"):
        precision.keep_in(tmp_path)
    monkeypatch.setenv(VARIABLE, "float16")
    assert precision.keep_in(tmp_path) is F16
    (tmp_path / "compute_dtype").write_text("float12")
    with pytest.raises(ValueError, match="compute_dtype: must be float32, bfloat16 or float16, and is 'float12'"):
        precision.keep_in(tmp_path)
    with pytest.raises(FileNotFoundError):
        precision.keep_in(tmp_path / "not there")


def test_what_a_device_cannot_do_is_absent(monkeypatch):
    products = precision._products

    def without_float16(rows, width, dtype, device):
        if dtype is F16:
            raise RuntimeError('"addmm_impl_cpu_" not implemented for \'Half\'')
        return products(rows, width, dtype, device)

    monkeypatch.setattr(precision, "_products", without_float16)
    assert precision.measure().keys() == {F32, BF16}


def test_measuring_under_a_limit(disk):
    with bottomless.limit("8MiB", disk):
        assert precision.compute_dtype() in (F32, BF16, F16)


# --- the variable ---


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_the_variable_decides(dtype, monkeypatch):
    monkeypatch.setattr(precision, "_measure", lambda device, most: pytest.fail("nothing is to be measured"))
    monkeypatch.setenv(VARIABLE, str(dtype).removeprefix("torch."))
    assert precision.compute_dtype() is dtype
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with precision.autocast():
            assert torch.is_autocast_enabled("cpu") is (dtype is not F32)
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype
        assert precision.grad_scaler().is_enabled() is (dtype is F16)


@pytest.mark.parametrize("name", ["fp8", "torch.bfloat16", "BFLOAT16", " "])
def test_a_wrong_variable_is_refused(name, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)
    for call in (precision.compute_dtype, precision.autocast, precision.grad_scaler):
        with pytest.raises(ValueError, match=f"^{VARIABLE} '{name}': must be float32, bfloat16 or float16$"):
            call()
    outcome = run([sys.executable, "-m", "bottomless.precision"])
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1) and name in outcome.err


# --- training ---


def test_float16_with_dynamic_loss_scaling_learns(monkeypatch):
    monkeypatch.setenv(VARIABLE, "float16")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = bottomless.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = precision.grad_scaler()
    x = torch.randn(64, 16)
    target = x[:, :4] - x[:, 4:8]
    losses = []
    for _ in range(100):
        with precision.autocast():
            loss = (model(x) - target).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert all(parameter.dtype is F32 for parameter in model.parameters())


def test_an_infinity_leaves_the_step_out_and_halves_the_scale(monkeypatch):
    """In float16 itself: a loss so large that its scaled gradient has no number there."""
    monkeypatch.setenv(VARIABLE, "float16")
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = bottomless.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = precision.grad_scaler()

    def step(factor):
        optimizer.zero_grad()
        with precision.autocast():
            loss = model(torch.ones(4, 8)).float().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    step(1e-3)
    scale, before = scaler.get_scale(), fingerprints(model.state_dict())
    with pytest.warns(UserWarning, match="left out"):
        step(1e3)
    assert scaler.get_scale() == scale / 2 and fingerprints(model.state_dict()) == before
    step(1e-3)
    assert scaler.get_scale() == scale / 2 and fingerprints(model.state_dict()) != before
    assert optimizer.state[model.weight]["step"] == 2


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_the_same_bits_under_a_limit(name, disk, monkeypatch):
    """Also with steps that are left out: the scale begins where nothing fits float16."""
    monkeypatch.setenv(VARIABLE, name)

    def work():
        torch.manual_seed(1)
        model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
        optimizer = bottomless.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = precision.grad_scaler()
        scales = []
        for step in range(5):
            optimizer.zero_grad()
            with precision.autocast():
                loss = model(torch.randn(4, 512)).float().square().mean() * (1e6 if step == 2 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return fingerprints(training_state(model, optimizer)), scales

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*left out")
        plain = work()
        with limit("12MiB", disk):
            limited = work()
    assert limited == plain
    assert (len(set(plain[1])) > 1) is (name == "float16")


# --- what is said of it ---


def test_the_module_prints_one_line():
    outcome = run([sys.executable, "-W", "error::RuntimeWarning", "-m", "bottomless.precision"])
    assert (outcome.code, outcome.err) == (0, "")
    said = json.loads(outcome.out)
    assert said["speed"].keys() <= {"bfloat16", "float16"}
    assert all(0 < low <= high for low, high in said["speed"].values()) and said["quiet"] in (True, False)
    again = json.loads(run([sys.executable, "-m", "bottomless.precision"]).out)
    assert again["chosen"] == said["chosen"] and (again == said or not said["quiet"])
    assert said["chosen"] in ("float32", "bfloat16", "float16") and said["set_by"] == "measurement"
    fixed = run([sys.executable, "-m", "bottomless.precision"], env={VARIABLE: "float16"})
    assert fixed.stats["chosen"] == "float16" and fixed.stats["set_by"] == VARIABLE


def test_the_package_has_it_without_an_import_of_its_own():
    outcome = run_python("import bottomless; print(bottomless.precision.compute_dtype())", env={VARIABLE: "bfloat16"})
    assert (outcome.code, outcome.out) == (0, "torch.bfloat16\n"), outcome.err


@pytest.mark.parametrize("fixed", ["", "float16"])
def test_doctor_says_what_is_chosen(fixed, tmp_path):
    program = pathlib.Path(sys.executable).parent / "bottomless"
    if not program.exists():
        pytest.skip("the program is not installed beside this Python")
    outcome = run([program, "doctor", "--json", "--disk", tmp_path], env={VARIABLE: fixed})
    finding = next(it for it in json.loads(outcome.out)["findings"] if it["topic"] == "compute precision")
    assert finding["verdict"] == "good" and finding["advice"] == ""
    assert " x float32, float16 " in finding["value"]
    assert not fixed or f": float16 is chosen by {VARIABLE}" in finding["value"]
