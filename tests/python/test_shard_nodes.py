"""bottomless.shard(node_shares=True): the same bits, and only the first gather of a step crosses nodes."""

import pytest

from ranks import run_ranks
from sharded_training import EAGERLY, PARAMETERS, TIGHT, check_moved, check_same_bits, received, sharded, train

TWO_NODES = {"LOCAL_WORLD_SIZE": "2"}  # of four ranks


def test_only_the_first_gather_of_a_step_crosses_nodes(disk):
    steps = 4
    plain = sharded(3, TIGHT, steps, meet=True)
    hostile = sharded(3, TIGHT, 2, env=EAGERLY)
    cases = [plain, plain | {"node_shares": True}, hostile, hostile | {"node_shares": True}]
    results = train(cases, disk, ranks=4, env=TWO_NODES)
    check_same_bits([rank[:2] for rank in results])
    check_same_bits([rank[2:] for rank in results])
    for rank in results:
        assert rank[2]["losses"] == rank[0]["losses"][:2]
    others = 4 * PARAMETERS / 2 * (steps - 1)  # what the other node has
    for rank in results:
        check_moved(rank)
        for run in rank[:2]:
            mine = 4 * PARAMETERS * 3 / 4 * (steps - 1)
            assert received(run, "received_gradient_bytes") == pytest.approx(mine, rel=0.01)
    across = [sum(received(rank[case], "received_parameter_across_bytes") for rank in results) for case in (0, 1)]
    in_all = sum(received(rank[1], "received_parameter_bytes") for rank in results)
    assert across[0] > 1.4 * others * len(results)
    # Once, and now and then again where a rank asks before the other one of its node has kept its part. Without, it is memory
    # that decides how much comes a second time.
    assert across[1] < 0.9 * across[0]
    assert in_all > 1.5 * across[1]


def test_together_with_quantised_weights(disk):
    """What was quantised once is kept as it is, so that every gather of a step gives the same numbers."""
    narrow = sharded(3, TIGHT, 3, quantised_weights=True)
    results = train([narrow, narrow | {"node_shares": True, "ranks_per_node": 1}], disk)
    check_same_bits(results)
    for rank in results:
        check_moved(rank)


REFUSED = """
import sys
import torch
import bottomless
from ranks import begin, end

begin()
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with bottomless.limit("16MiB", sys.argv[1]):
    said = []
    for stage, options in ((3, {}), (2, {"ranks_per_node": 1}), (3, {"ranks_per_node": 0})):
        try:
            bottomless.shard(model, optimizer, stage=stage, node_shares=True, **options)
        except ValueError as error:
            said.append(str(error))
    del model, optimizer
end(said)
"""


def test_what_is_refused(disk):
    for unknown, stage, none in run_ranks(REFUSED, disk, ranks=1):
        assert "LOCAL_WORLD_SIZE" in unknown and "ranks_per_node" in unknown
        assert "for stage 3" in stage
        assert "must be 1 or more" in none
