#!/usr/bin/env python3
"""Runs ninja in a build folder and shows how far it is: `build_progress.py FOLDER LOG [TARGET ...]`.

On a terminal one line that changes, with the time that is left; otherwise a line every half a minute. Everything that ninja
and the compiler say goes to LOG. When something fails, the first error is shown, not the last lines.
"""

import os
import re
import subprocess
import sys
import time

STATUS = re.compile(r"\[(\d+)/(\d+)\] ")
LINES_OF_AN_ERROR = 20


class Progress:
    """How far ninja is, said in a way that suits where it is said."""

    def __init__(self, what, out, clock=time.monotonic):
        self.what, self.out, self.clock = what, out, clock
        self.began, self.said_at, self.width = clock(), clock(), 0

    def update(self, done, of):
        now = self.clock()
        left = (now - self.began) / done * (of - done) if done else 0
        text = f"{self.what}: {done} of {of}" + (f", {duration(left)} left" if done < of and now - self.began > 3 else "")
        if self.out.isatty():
            self.out.write("\r" + text.ljust(self.width))
            self.width = len(text)
        elif now - self.said_at >= 30:
            self.said_at = now
            self.out.write(f"    {text}\n")
        self.out.flush()

    def close(self):
        if self.width:
            self.out.write("\r" + " " * self.width + "\r")
            self.out.flush()


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def first_error(output):
    """The lines about the first thing that failed: from its first error on, or all that it said if none is marked."""
    begin = next((i for i, line in enumerate(output) if line.startswith("FAILED: ")), None)
    if begin is None:
        return output[-LINES_OF_AN_ERROR:]
    end = next((i for i in range(begin + 1, len(output)) if STATUS.match(output[i]) or output[i].startswith("FAILED: ")), None)
    said = output[begin + 2 : end]  # behind the name comes the command
    marked = next((i for i, line in enumerate(said) if re.search(r"\berror\b|undefined reference", line)), 0)
    before = [line for line in said[max(0, marked - 1) : marked] if line.startswith("In ")]
    return [output[begin], *before, *said[marked : marked + LINES_OF_AN_ERROR]]


def main(folder, log, *targets):
    progress = Progress(f"building {os.path.relpath(folder)}", sys.stdout)
    output = []
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    with (
        open(log, "a", errors="replace") as file,
        subprocess.Popen(
            ["ninja", "-C", folder, *targets], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=environment,
        ) as ninja,
    ):  # fmt: skip
        for line in ninja.stdout:
            file.write(line)
            output.append(line.rstrip("\n"))
            if found := STATUS.match(line):
                progress.update(int(found[1]), int(found[2]))
    progress.close()
    if ninja.returncode:
        print("\n".join(first_error(output)), file=sys.stderr)
        print(f"failed: ninja -C {os.path.relpath(folder)} (all of it in {log})", file=sys.stderr)
    return 1 if ninja.returncode else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
