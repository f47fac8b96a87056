"""``python -m bottomless``: how ``bottomless run`` starts a Python program under a limit.

The program runs as ``__main__`` with its own arguments and path, and what it raises looks as if nothing were around it.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from typing import Any


def _load(program: list[str]) -> tuple[types.ModuleType, Any, list[str]]:
    """The program's main module, its code and its argv, as the interpreter itself would set them up."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if program[0] == "-c":
        sys.path.insert(0, "")
        main.__loader__ = importlib.machinery.BuiltinImporter
        return main, compile(program[1], "<string>", "exec"), ["-c", *program[2:]]
    if program[0] == "-m":
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(program[1])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(program[1] + ".__main__")
        if spec is None or spec.loader is None or spec.origin is None:
            raise FileNotFoundError(f"no module named {program[1]}")
        main.__spec__ = spec
        main.__loader__ = spec.loader
        main.__file__ = spec.origin
        main.__package__ = spec.parent
        return main, spec.loader.get_code(spec.name), [spec.origin, *program[2:]]
    script = program[0]
    with open(script, "rb") as file:
        source = file.read()
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    main.__file__ = os.path.join(os.getcwd(), script.removeprefix("./"))
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
    main.__spec__ = None
    return main, compile(source, main.__file__, "exec"), program


def _run(main: types.ModuleType, code: Any) -> int:
    """Runs the program; what it does not catch is shown without our own frames, with the exit code Python gives it."""
    try:
        exec(code, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error, error.__traceback__)
        sys.last_value = error  # as the interpreter does, for those who want to know at exit
        if type(error) is KeyboardInterrupt:
            sys.excepthook = lambda *_: None  # it has been shown
            raise  # the interpreter ends by SIGINT, which is how a shell learns that it is to stop, too
        return 1
    return 0


def _write(runtime: Any, options: argparse.Namespace) -> None:
    for write, file in ((runtime.report, options.report), (runtime.trace, options.trace)):
        try:
            if file:
                write(file)
        except (RuntimeError, ValueError) as error:
            print(str(error).split("\nException raised from")[0], file=sys.stderr)


def _passes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{text}: must be a number of backward passes, from 1 to 1000000")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bottomless", description=__doc__)
    parser.add_argument("--memory", required=True)
    parser.add_argument("--disk", required=True)
    parser.add_argument("--disk-limit")
    parser.add_argument("--checksums", action="store_true")
    parser.add_argument("--no-deferred-updates", action="store_true")
    parser.add_argument("--update-in-backward", type=_passes, default=0)
    parser.add_argument("--report")
    parser.add_argument("--trace")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    for name in ("report", "trace"):  # the program may go elsewhere meanwhile
        if getattr(options, name):
            file = os.path.abspath(getattr(options, name))
            where = file if os.path.exists(file) else os.path.dirname(file)
            if os.path.isdir(file) or not os.access(where, os.W_OK):  # said now, not after hours
                sys.exit(f"bottomless: --{name} {file}: no file can be written there")
            setattr(options, name, file)
    if options.program[:1] == ["--"]:  # Python versions differ in whether argparse drops it
        del options.program[0]

    sys.path.pop(0)  # where -m put the current directory: the program's own path comes instead
    try:
        module, code, argv = _load(options.program)
    except OSError as error:
        sys.exit(f"bottomless: run {' '.join(options.program[:2])}: {error}")
    except SyntaxError as error:
        sys.excepthook(type(error), error.with_traceback(None), None)  # without our own frames
        sys.exit(1)

    import bottomless

    try:
        runtime = bottomless.limit(
            options.memory,
            options.disk.split(","),
            options.disk_limit,
            options.checksums,
            not options.no_deferred_updates,
            options.update_in_backward,
            recorded=bool(options.report or options.trace),
        )
    except (RuntimeError, ValueError) as error:
        sys.exit(str(error).split("\nException raised from")[0])
    if options.steps:
        runtime._end_after(options.steps)
    sys.argv = argv
    sys.modules["__main__"] = module
    try:
        status = _run(module, code)
    finally:
        _write(runtime, options)
        stats = runtime.stats()
        if options.json:
            sys.stdout.flush()
            sys.stdout.write(json.dumps(stats) + "\n")  # at once: other ranks may write to the same pipe
            sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main()
