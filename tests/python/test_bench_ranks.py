"""bench/ranks.py runs, and its counters are of what it says: disks are read, by everybody or by owners, ahead of time or not."""

import json
import sys

from helpers import ROOT, run

SMALL = "--ranks 2 --batches 2 --rounds 1 --passes 1 --layers 12 --memory 12MiB --training-memory 12MiB --bandwidth 1GiB --json"


def test_small_run(tmp_path):
    outcome = run([sys.executable, ROOT / "bench" / "ranks.py", *SMALL.split(), "--directory", tmp_path])
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    share = found["bytes_for_each_rank"]
    (reading,), (overlap,) = found["reading"], found["overlap"]
    assert reading["ranks"] == 2 and overlap["batch"] == 2
    assert min(reading["ratio_ahead"], reading["ratio_when_needed"], overlap["ratio"]) > 0
    jobs = reading["jobs"] | overlap["jobs"]
    assert len(jobs) == 6
    for name, job in jobs.items():
        for rank in range(2):
            assert job["read_bytes"][rank] > 0, (name, job)
            assert (job["planned_fetches"][rank] == 0) == name.endswith("when_needed"), (name, job)
        if "read" in name:  # a forward pass changes nothing that would have to be written
            assert sum(job["written_bytes"]) < share / 4, (name, job)
    for name in ("owner reads, planned", "owner reads, when_needed"):
        assert max(jobs[name]["read_bytes"]) < 1.2 * share
    assert list(tmp_path.iterdir()) == []
