"""What `/state` says of the processes of a model: layouts over stages, shards and nodes, and what each holds."""

import pytest

from kvasir_api.options import ServeOptions
from kvasir_runtime import rank_states
from kvasir_runtime.rank_states import RankSize


def options(**fields):
    return ServeOptions(model="/m", **fields)


def places(found):
    return [(one.rank, one.node, one.stage, one.shard) for one in found]


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, []),
        ({"tensor_parallel_size": 2}, [(0, 0, 0, 0), (1, 0, 0, 1)]),
        ({"tensor_parallel_size": 2, "nnodes": 2}, [(0, 0, 0, 0), (1, 1, 0, 1)]),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nnodes": 2},
            [(0, 0, 0, 0), (1, 0, 0, 1), (2, 1, 1, 0), (3, 1, 1, 1)],
        ),
    ],
)
def test_each_rank_has_its_place(fields, want):
    assert places(rank_states.joined(options(**fields))) == want


def test_ranks_of_nodes_that_have_not_joined_are_not_alive_and_a_node_knows_its_own():
    fields = {"tensor_parallel_size": 4, "nnodes": 2}
    found = rank_states.joined(options(**fields), (1,))
    assert [one.alive for one in found] == [True, True, False, False]
    own = rank_states.joined(options(**fields, node_rank=1), (0,))
    assert [(one.rank, one.alive) for one in own] == [(2, True), (3, True)]


def test_a_rank_holds_what_its_stage_does():
    found = rank_states.loaded(
        options(tensor_parallel_size=2, pipeline_parallel_size=2), [RankSize(100, 4), RankSize(70, 6)], 1000
    )
    assert [(one.weights_bytes, one.kv_bytes, one.alive) for one in found] == [
        (100, 4000, True),
        (100, 4000, True),
        (70, 6000, True),
        (70, 6000, True),
    ]
