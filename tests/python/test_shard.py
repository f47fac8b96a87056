"""bottomless.shard: the same bits wherever blocks are, the losses of DDP and FSDP2, and the traffic and memory of ZeRO.

The order of sums is stated in the C++ (each owner adds from its own rank on, cyclically), so only DDP, FSDP2 and a single
rank with the whole batch differ in the last bits.
"""

import json

import pytest

from ranks import outcomes_of_ranks
from sharded_training import EAGERLY, PARAMETERS, PROGRAM, TIGHT, check_moved, check_same_bits, received, sharded, train

STEPS = 5
RUNS = {
    "ample 1": sharded(1, "64MiB", STEPS),
    "ample 2": sharded(2, "64MiB", STEPS),
    "ample 3": sharded(3, "64MiB", STEPS),
    "tight 1": sharded(1, TIGHT, STEPS),
    "tight 2": sharded(2, TIGHT, STEPS),
    "tight 3": sharded(3, TIGHT, STEPS),
    "eagerly 2": sharded(2, "64MiB", STEPS, env=EAGERLY),
    "eagerly 3": sharded(3, "64MiB", STEPS, env=EAGERLY),
    "unplanned": sharded(3, TIGHT, STEPS, env={"BOTTOMLESS_MOVEMENT": "when_needed"}),
    "weights": sharded(3, TIGHT, STEPS, quantised_weights=True),
    "gradients": sharded(3, TIGHT, STEPS, quantised_gradients=True),
}
EXACT = [name for name in RUNS if name not in ("weights", "gradients")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By rank, then by name; all in one pair of processes, since most of the time goes into starting those."""
    results = train(list(RUNS.values()), tmp_path_factory.mktemp("scratch"))
    return [dict(zip(RUNS, rank)) for rank in results]


def test_bits_do_not_depend_on_stage_or_limit(runs):
    check_same_bits([[rank[name] for name in EXACT] for rank in runs])
    for rank in runs:
        check_moved([rank[name] for name in EXACT if not name.startswith("ample")])


def test_traffic(runs):
    """As in ZeRO's paper: gradients and parameters once each for stages 1 and 2; parameters a second time for stage 3."""
    others = 4 * PARAMETERS / 2 * (STEPS - 1)
    for rank in runs:
        once, twice = (rank["ample 1"], rank["ample 2"]), rank["tight 3"]
        for run in (*once, twice):
            assert received(run, "received_gradient_bytes") == pytest.approx(others, rel=0.01)
            assert received(run, "received_across_bytes") == 0  # they are one node unless somebody says otherwise
        for run in once:  # a layer or two of the next step may be there already
            assert received(run, "received_parameter_bytes") == pytest.approx(others, abs=2 * 4 * 512 * 512)
        assert 1.3 * others < received(twice, "received_parameter_bytes") < 2.05 * others


def test_quantised(runs):
    """A quarter of the bytes, the same on all ranks, and a loss that stays within 5 % of where it began."""
    for name in ("weights", "gradients"):
        assert runs[0][name]["state"] == runs[1][name]["state"]
    for rank in runs:
        plain, weights, gradients = rank["tight 3"], rank["weights"], rank["gradients"]
        assert received(gradients, "received_gradient_bytes") < 0.27 * received(plain, "received_gradient_bytes")
        assert received(weights, "received_parameter_bytes") < 0.35 * received(plain, "received_parameter_bytes")
        for run in (weights, gradients):
            assert run["losses"] == pytest.approx(plain["losses"], abs=0.05 * plain["losses"][0])
            assert run["losses"] != plain["losses"]


def test_three_ranks(disk):
    """With more than two, the order of a sum shows: who has which share must not depend on the limit."""
    limits = [sharded(3, "64MiB", 3), sharded(3, TIGHT, 3), sharded(1, TIGHT, 3), sharded(3, "64MiB", 3, env=EAGERLY)]
    results = train(limits, disk, ranks=3)
    check_same_bits(results)
    for rank in results:
        check_moved(rank[1:])


def test_losses_are_those_of_ddp_fsdp_and_a_single_rank(disk):
    same = {"steps": 50, "count": 3}
    cases = [sharded(3, "9MiB", **same), *({"what": other, **same} for other in ("ddp", "fsdp", "alone"))]
    for ours, *theirs in train(cases, disk):
        assert ours["losses"][-1] < 0.9 * ours["losses"][0]
        check_moved([ours])
        for run in theirs:
            assert run["losses"] == pytest.approx(ours["losses"], rel=1e-4)


def test_memory(disk):
    """Nothing may go to disk but a layer: 16 / N bytes a parameter and a few layers at a time fit, and stage 1 does not."""
    all_of_it, share = 16 * PARAMETERS, 16 * PARAMETERS / 2
    working_set = 11 << 20  # a few layers with their gradients, buffers and threads
    memory = int(share + working_set)
    assert memory < all_of_it
    for (run,) in train([sharded(3, memory, 3, disk_limit="1MiB")], disk):
        assert run["stats"]["peak_bytes"] <= memory
    outcomes, _ = outcomes_of_ranks(PROGRAM, json.dumps([sharded(1, memory, 2, disk_limit="1MiB")]), disk)
    assert any("(--disk-limit)" in outcome.err for outcome in outcomes), outcomes
