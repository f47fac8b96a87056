"""`bottomless run`: a program runs as under plain Python, only inside a limit."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from helpers import HANGS, KEYS, MIB, bottomless_run, check_moved, run, run_limited

BINARY = (pathlib.Path(sys.executable).parent / "bottomless").exists()


@pytest.fixture
def script(tmp_path):
    """Writes scripts into a directory of their own."""
    (tmp_path / "scripts").mkdir()

    def write(text, name="script.py"):
        path = tmp_path / "scripts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def both(program, disk, cwd=None, **how):
    """The program plainly and inside a limit."""
    return run([sys.executable, *program], cwd=cwd, **how), run_limited(["--", *program], "64MiB", disk, cwd=cwd, **how)


def check_same(program, disk, cwd=None):
    plain, limited = both(program, disk, cwd)
    assert limited == plain
    return limited


LOOK_AROUND = """
import os, sys
print(__name__, __file__ if "__file__" in globals() else None, sys.argv, sys.path[0], os.getcwd(), sep="\\n")
print(__package__, __spec__ is None, __doc__, sorted(name for name in globals() if not name.startswith("__")))
print(sys.modules["__main__"].__dict__ is globals(), __builtins__ is not None, type(__loader__).__name__)
"""


@pytest.mark.parametrize("arguments", [[], ["--memory", "1", "-x", "--json", "--", "a b"], ["--help"], ["-c", "pass"]], ids=str)
def test_script_finds_itself_as_usual(arguments, script, disk):
    outcome = check_same([script(LOOK_AROUND), *arguments], disk)
    assert outcome.code == 0


def test_script_by_a_relative_path(script, disk):
    path = script(LOOK_AROUND)
    assert check_same([path.name], disk, cwd=path.parent).code == 0
    assert check_same([f"../{path.parent.name}/{path.name}"], disk, cwd=path.parent).code == 0


def test_script_behind_a_link(script, disk, tmp_path):
    """Its neighbours are those of the file that the link names."""
    script("answer = 42", "helper.py")
    (tmp_path / "link.py").symlink_to(script(LOOK_AROUND + "import helper"))
    assert check_same([tmp_path / "link.py"], disk).code == 0


def test_code_given_on_the_command_line(script, disk):
    outcome = check_same(["-c", LOOK_AROUND, "first", "-x"], disk, cwd=script("").parent)
    assert outcome.code == 0


@pytest.mark.parametrize("module", ["tool", "package", "package.tool"])
def test_module(module, script, disk):
    script(LOOK_AROUND, "tool.py")
    script("", "package/__init__.py")
    script("from . import tool\n" + LOOK_AROUND, "package/__main__.py")
    directory = script(LOOK_AROUND, "package/tool.py").parent.parent
    outcome = check_same(["-m", module, "first", "-x"], disk, cwd=directory)
    assert outcome.code == 0


def test_modules_beside_the_script_are_found(script, disk, tmp_path):
    script("from .parts import answer", "helper/__init__.py")
    script("answer = 42", "helper/parts.py")
    path = script("import helper; print(helper.answer)")
    outcome = check_same([path], disk, cwd=tmp_path)
    assert outcome.out == "42\n"


def test_classes_of_the_script_can_be_pickled(script, disk):
    path = script(
        """if True:
        import copy, multiprocessing, pickle
        class Thing:
            value = 3
        def work(x):
            return x.value
        if __name__ == "__main__":
            print(pickle.loads(pickle.dumps(Thing())).value, Thing.__module__, work.__module__)
            with multiprocessing.get_context("fork").Pool(1) as pool:
                print(pool.map(work, [Thing()]))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [Thing()]))
    """
    )
    outcome = check_same([path], disk)
    assert outcome.out.splitlines() == ["3 __main__ __main__", "[3]", "[3]"]


ENDINGS = {
    "nothing": "",
    "exit_0": "import sys; sys.exit()",
    "exit_7": "import sys; sys.exit(7)",
    "exit_300": "import sys; sys.exit(300)",
    "exit_none": "raise SystemExit(None)",
    "exit_message": "import sys; print('before'); sys.exit('the message')",
    "exit_object": "raise SystemExit(('a', 1))",
    "os_exit": "import os; os._exit(9)",
    "error": "def inner(x):\n    return 1 / x\n\ndef outer():\n    return inner(0)\n\nprint('before')\nouter()",
    "chained_error": "try:\n    {}['key']\nexcept KeyError as error:\n    raise RuntimeError('outer') from error",
    "torch_error": "import torch\ntorch.ones(2) + torch.ones(3)",
    "error_group": "raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
    "own_error": "class MyError(Exception):\n    pass\nraise MyError('mine')",
    "import_error": "import there_is_no_such_module",
    "syntax_error": "x = (1,\nprint(",
    "indentation_error": "if True:\nx = 1",
    "keyboard_interrupt": "raise KeyboardInterrupt",
    "own_hook": "import sys\nsys.excepthook = lambda *error: print('hook', error[0].__name__)\n1 / 0",
    "at_exit": "import atexit\natexit.register(print, 'at exit')\nraise ValueError(5)",
    "error_in_a_thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
    "thread_outlives_main": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()",
    "warning": "import warnings\nwarnings.warn('careful')",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_ends_as_under_plain_python(ending, script, disk):
    """The same output, the same traceback, the same exit code."""
    path = script(ENDINGS[ending])
    plain, limited = both([path], disk)
    hide = lambda text: re.sub(r"0x[0-9a-f]+|Thread-\d+", "...", text)
    assert (limited.out, hide(limited.err)) == (plain.out, hide(plain.err))
    assert limited.code == plain.code


def test_interrupted_from_outside(script, disk):
    path = script("import time\nprint('ready', flush=True)\ntime.sleep(1000)\n")
    command = [*map(str, bottomless_run()), "--memory", "64MiB", "--disk", str(disk), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=HANGS)[1]
    assert process.returncode == -signal.SIGINT
    assert error.splitlines()[-1] == "KeyboardInterrupt"
    assert "bottomless" not in error


def test_standard_input_is_the_programs_own(script, disk):
    path = script("import sys; print(sys.stdin.read().upper())")
    command = [*map(str, bottomless_run()), "--memory", "64MiB", "--disk", str(disk), str(path)]
    done = subprocess.run(command, input="text", capture_output=True, text=True, timeout=HANGS)
    assert (done.returncode, done.stdout) == (0, "TEXT\n"), done.stderr


# --- the limit ---

TRAIN = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(10)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(4, 512)).sum().backward()
    optimizer.step()
print("trained")
"""


def test_json_is_the_last_line(script, disk):
    outcome = run_limited([script(TRAIN)], "12MiB", disk, "--json")
    assert (outcome.code, outcome.lines, outcome.err) == (0, ["trained"], "")
    assert outcome.stats.keys() == KEYS
    assert (outcome.stats["limit_bytes"], outcome.stats["steps"]) == (12 * MIB, 2)
    check_moved(outcome.stats)


@pytest.mark.parametrize("ending, code", [("import sys; sys.exit(3)", 3), ("1 / 0", 1)])
def test_json_comes_also_when_the_program_fails(ending, code, script, disk):
    outcome = run_limited([script(TRAIN + ending)], "12MiB", disk, "--json")
    assert (outcome.code, outcome.lines) == (code, ["trained"])
    assert outcome.stats["steps"] == 2


def test_several_directories(script, disk, tmp_path):
    (tmp_path / "other").mkdir()
    outcome = run_limited([script(TRAIN)], "12MiB", f"{disk},{tmp_path / 'other'}", "--json")
    assert outcome.code == 0, outcome.err
    check_moved(outcome.stats)


def test_memory_auto(script, disk):
    """Most of what the machine leaves; never more than a resource limit does."""
    path = script("import torch; print(int(torch.ones(1 << 20).sum()))")
    outcome = run_limited([path], "auto", disk, "--json")
    assert (outcome.code, outcome.lines) == (0, [str(1 << 20)]), outcome.err
    assert "--memory auto: " in outcome.err
    with open("/proc/meminfo") as file:
        total = int(next(line for line in file if line.startswith("MemTotal")).split()[1]) << 10
    assert 0 < outcome.stats["limit_bytes"] < total
    limited = run(["sh", "-c", 'ulimit -d 4194304; exec "$@"', "sh", *bottomless_run(), "--memory", "auto", "--disk", disk, "--json", path])
    assert limited.code == 0, limited.err
    assert limited.stats["limit_bytes"] <= 4 << 30
    assert "RLIMIT_DATA" in limited.err or outcome.stats["limit_bytes"] < 4 << 30


def test_disk_limit(script, disk):
    outcome = run_limited([script(TRAIN)], "12MiB", disk, "--disk-limit", "8MiB")
    assert outcome.code == 1
    assert "--disk-limit" in outcome.err.splitlines()[-1] and "8 MiB" in outcome.err.splitlines()[-1]


@pytest.mark.skipif(not BINARY, reason="python -m bottomless wants a number")
@pytest.mark.parametrize(
    "options, passes",
    [
        (["--update-in-backward"], 1),
        (["--update-in-backward=4"], 4),
        (["--update-in-backward=4", "--update-in-backward=3"], 3),
        (["--update-in-backward", "--update-in-backward"], 1),
    ],
    ids=str,
)
def test_passes_of_update_in_backward(options, passes, script, disk):
    path = script("import bottomless; print(bottomless._current._update_in_backward._passes)")
    outcome = run_limited([path], "64MiB", disk, *options)
    assert (outcome.code, outcome.out.split()) == (0, [str(passes)]), outcome.err


def test_too_small_a_limit_shows_the_programs_own_traceback(script, disk):
    path = script("import torch\nx = torch.randn(8 << 20)\n")
    outcome = run_limited([path], "12MiB", disk)
    assert outcome.code == 1
    assert outcome.err.startswith(f'Traceback (most recent call last):\n  File "{path}", line 2, in <module>\n')
    assert outcome.err.splitlines()[-1].startswith("torch.OutOfMemoryError: bottomless: run aten::")


# --- wrong usage ---

WRONG = {
    "no_such_script": (["--memory", "64MiB", "--disk", "{disk}", "missing.py"], "missing.py"),
    "no_script": (["--memory", "64MiB", "--disk", "{disk}"], "program"),
    "no_memory": (["--disk", "{disk}", "script.py"], "--memory"),
    "no_disk": (["--memory", "64MiB", "script.py"], "--disk"),
    "no_size": (["--memory", "4 apples", "--disk", "{disk}", "script.py"], "4 apples"),
    "no_disk_size": (["--memory", "64MiB", "--disk", "{disk}", "--disk-limit", "many", "script.py"], "many"),
    **{
        f"passes_{passes}": (
            ["--memory", "64MiB", "--disk", "{disk}", f"--update-in-backward={passes}", "script.py"],
            "number of backward passes",
        )
        for passes in ("-2", "0", "false", "1.5", "99999999999")
    },
    "unknown_option": (["--memory", "64MiB", "--disk", "{disk}", "--speed", "9", "script.py"], "--speed"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_usage(wrong, script, disk):
    options, named = WRONG[wrong]
    cwd = script("print('must not run')").parent
    outcome = run([*bottomless_run(), *(option.format(disk=disk) for option in options)], cwd=cwd)
    assert outcome.code == 2 if BINARY else outcome.code != 0
    assert named in outcome.err and "Traceback" not in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    "memory, directory, named", [("1KiB", "{disk}", "at least 8 MiB"), ("64MiB", "/there/is/no/such", "/there/is/no/such")]
)
def test_limit_that_cannot_work(memory, directory, named, script, disk):
    outcome = run_limited([script("print('must not run')")], memory, directory.format(disk=disk))
    assert outcome.code in (1, 2)
    assert named in outcome.err and "Traceback" not in outcome.err and "Exception raised" not in outcome.err
    assert outcome.out == ""
