"""Ranks in the status: what node 0 says of them, and what is known of the pods where they are."""

import msgspec
import pytest

from fakes.situations import findings, replica
from kvasir_api.rank_state import RankState
from kvasir_api.state import RuntimeState, decode
from kvasir_operator.observed.replica import Replica
from kvasir_operator.status.compose import compose, document

READ = RuntimeState(
    phase="ready",
    ranks=(
        RankState(rank=0, alive=True, weights_bytes=10_000_000_000, kv_bytes=2_000_000_000),
        RankState(rank=1, node=1, stage=1, alive=True, weights_bytes=8_000_000_000),
    ),
)
NODE = Replica(name="s-1", node="host-b", phase="ready")


def lines(*replicas):
    return document(compose(findings(*replicas, wanted=len(replicas)))[0]).get("ranks")


def test_each_rank_has_a_line_with_its_place_and_its_memory():
    assert lines(replica("ready", reading=READ, node="host-a", nodes=(NODE,))) == [
        "pod rank 0: alive, stage 0, shard 0, node 0 (pod on host-a), 12 GB",
        "pod rank 1: alive, stage 1, shard 0, node 1 (s-1 on host-b), 8 GB",
    ]


@pytest.mark.parametrize(
    ("nodes", "where"),
    [
        ((), "no pod"),
        ((msgspec.structs.replace(NODE, terminating=True),), "s-1 on host-b"),
        ((msgspec.structs.replace(NODE, phase="failed"),), "s-1 on host-b"),
    ],
)
def test_a_rank_whose_pod_is_lost_is_missing_and_comes_first_though_node_0_does_not_know(nodes, where):
    first, second = lines(replica("ready", reading=READ, nodes=nodes))
    assert first == f"pod rank 1: missing, stage 1, shard 0, node 1 ({where}), 8 GB"
    assert second.startswith("pod rank 0: alive")


def test_a_rank_that_has_not_joined_is_missing():
    waits = RuntimeState(phase="starting", ranks=(RankState(alive=True), RankState(rank=1, shard=1, node=1)))
    assert lines(replica("starting", reading=waits, nodes=(NODE,)))[0].startswith("pod rank 1: missing")


def test_as_many_are_listed_as_a_status_may_hold_and_none_of_a_replica_of_one_process():
    many = [replica("ready", name=f"pod-{number}", reading=READ, nodes=(NODE,)) for number in range(20)]
    assert len(lines(*many)) == 16
    assert lines(replica("ready", reading=RuntimeState(phase="ready"))) is None


def test_a_reading_with_more_ranks_than_a_replica_has_is_none():
    told = msgspec.json.encode(msgspec.structs.replace(READ, ranks=(RankState(),) * 9))
    with pytest.raises(msgspec.ValidationError):
        decode(told)
