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
def nothing_chosen(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(precision, "_chosen", {})


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
    monkeypatch.setattr(precision, "measure", lambda device: seconds)
    assert precision.compute_dtype() is chosen


def test_measured_once_a_device(monkeypatch):
    measured = []
    monkeypatch.setattr(precision, "measure", lambda device: measured.append(device) or {F32: 1.0, BF16: 0.1})
    for device in ("cpu", torch.device("cpu"), "meta", "cpu", "meta"):
        assert precision.compute_dtype(device) is BF16
    assert measured == [torch.device("cpu"), torch.device("meta")]


def test_a_measurement_leaves_no_trace():
    before, mode = torch.get_rng_state(), torch.is_grad_enabled()
    with torch.autocast("cpu", dtype=BF16):
        seconds = precision.measure()
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is BF16
    assert seconds.keys() == {F32, BF16, F16} and min(seconds.values()) > 0
    assert torch.equal(torch.get_rng_state(), before) and torch.is_grad_enabled() is mode
    with torch.no_grad():
        precision.measure()
        assert not torch.is_grad_enabled()


def test_each_type_is_measured_in_itself(monkeypatch):
    """Also inside the program's own autocast, which would have float32 computed in something else."""
    seen = []
    monkeypatch.setattr(precision, "_seconds", lambda work, device: seen.append(work()) or 1.0)
    product = torch.Tensor.__matmul__
    types = []
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: types.append(product(a, b).dtype))
    with torch.autocast("cpu", dtype=BF16):
        precision.measure()
    assert set(types) == {F32, BF16, F16} and types.count(F32) >= 3 * precision._PASSES


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
    monkeypatch.setattr(precision, "measure", lambda device: pytest.fail("nothing is to be measured"))
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
    seconds = {F32: 1.0} | {getattr(torch, name): 1 / factor for name, factor in said["speed"].items()}
    assert (getattr(torch, said["chosen"]), said["set_by"]) == (precision.choose(seconds), "measurement")
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
    assert not fixed or finding["value"].endswith(f": float16 is chosen by {VARIABLE}")
