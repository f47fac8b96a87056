"""The kernel as the judge of the limit: what our own counters claim, RLIMIT_DATA enforces.

The kernel counts every private writable mapping of a process against RLIMIT_DATA: heaps, thread stacks, what libraries
keep for themselves, and our frames. The interpreter with its libraries needs some of that for any program. This fixed
cost is measured with a tiny model; the limit is granted on top of it and nothing else, but for a small allowance.
"""

import pathlib
import sys

from helpers import MIB, bottomless_run, check_moved, run

PROGRAM = pathlib.Path(__file__).parent / "programs/gpt2.py"
LIMIT = 512 * MIB
# For what grows with the model and is no tensor: workspaces of the math libraries, Python objects, graph nodes. 4 MiB
# were enough where this was written.
ALLOWANCE = 32 * MIB


class Trained:
    """What the program printed: results first, then two lines of memory."""

    def __init__(self, outcome):
        assert outcome.code == 0, outcome.err
        lines = outcome.out.splitlines()
        self.stats = outcome.stats if lines[-1].startswith("{") else None
        *self.results, data, resident = lines[:-1] if self.stats else lines
        assert len(self.results) == 3, outcome.out
        assert data.startswith("VmData ") and resident.startswith("VmHWM "), outcome.out
        self.data, self.peak_resident = int(data.split()[1]), int(resident.split()[1])


def with_data_limit(limit, command):
    return ["sh", "-c", f'ulimit -d {limit >> 10} && exec "$@"', "sh", *command]


def test_gpt2_of_2_gib_trains_in_512_mib_by_the_kernels_own_count(disk):
    limited = [*bottomless_run(), "--memory", str(LIMIT), "--disk", disk, "--json", PROGRAM]
    tiny = Trained(run([*limited, "tiny"]))
    assert tiny.stats["evictions"] == 0
    assert tiny.stats["peak_bytes"] - tiny.stats["overhead_bytes"] < 8 * MIB, "all else is a fixed cost"
    fixed = tiny.data - tiny.stats["peak_bytes"]
    granted = fixed + LIMIT + ALLOWANCE

    plain = Trained(run([sys.executable, PROGRAM, "124M"]))
    needed = plain.peak_resident - tiny.peak_resident
    assert needed > 2048 * MIB
    assert ALLOWANCE < needed / 50, "the allowance must not be what makes it fit"

    refused = run(with_data_limit(granted, [sys.executable, PROGRAM, "124M"]))
    assert (refused.code, refused.out) == (1, ""), "plain PyTorch must not even come to a first loss"
    assert "DefaultCPUAllocator: can't allocate memory" in refused.err.splitlines()[-1], refused.err

    judged = Trained(run(with_data_limit(granted, [*limited, "124M"])))
    assert judged.results == plain.results
    check_moved(judged.stats)
    assert judged.stats["read_bytes"] > 0 and judged.stats["steps"] == 2
    assert judged.peak_resident - tiny.peak_resident <= LIMIT + ALLOWANCE
