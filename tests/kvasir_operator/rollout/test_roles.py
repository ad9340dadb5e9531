"""Which pods get the role of computing prompts, keep it and lose it, and that a revision always has one for answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.state import MeasuredRates, RuntimeState
from kvasir_operator.observed.replica import Replica
from kvasir_operator.rollout.roles import actions

ABLE = RuntimeState(phase="ready", kv_prefill=True)
BUSY = RuntimeState(
    phase="ready", kv_prefill=True, running=4, expected_tokens=4000, rates=MeasuredRates(decode_step_s=0.1)
)


def replica(name, **fields):
    return Replica(
        **{"name": name, "uid": f"uid-{name}", "revision": "new", "phase": "ready", "reading": ABLE, **fields}
    )


def acts(*replicas, count=1):
    return [(action.verb, action.replica.name) for action in actions(replicas, current="new", count=count)]


TWO = replica("b"), replica("c")


@pytest.mark.parametrize(
    ("replicas", "count", "done"),
    [
        ((replica("a"), replica("b")), 0, []),
        ((replica("a"), replica("b", created=9.0), replica("c")), 1, [("prefill", "b")]),
        ((replica("a"), replica("b", created=9.0, reading=BUSY)), 1, [("prefill", "a")]),
        ((replica("a", prefill=True, reading=BUSY), replica("b", created=9.0), replica("c")), 1, []),
        ((replica("a", prefill=True), replica("b", prefill=True), replica("c")), 1, [("decode", "b")]),
        ((replica("a", prefill=True), replica("b")), 0, [("decode", "a")]),
        # one is left for answers, however many are to have the role
        ((replica("a"), replica("b"), replica("c")), 9, [("prefill", "a"), ("prefill", "b")]),
        ((replica("a"),), 1, []),
        ((replica("a", prefill=True),), 1, [("decode", "a")]),
        # one that is lost or starts again is replaced
        ((replica("a", prefill=True, phase="failed"), *TWO), 1, [("prefill", "b"), ("decode", "a")]),
        ((replica("a", prefill=True, terminating=True), replica("b"), replica("c")), 1, [("prefill", "b")]),
        ((replica("a", prefill=True, phase="draining"), replica("b"), replica("c")), 1, [("prefill", "b")]),
        ((replica("a", phase="loading"), replica("b")), 1, []),
        # a runtime that does not hand prompts over gets none, a silent one keeps what it has
        ((replica("a", reading=RuntimeState()), replica("b"), replica("c")), 1, [("prefill", "b")]),
        ((replica("a", prefill=True, reading=RuntimeState()), replica("b")), 1, [("decode", "a")]),
        ((replica("a", prefill=True, reading=None), replica("b"), replica("c")), 1, []),
        ((replica("a", reading=None, created=9.0), replica("b")), 1, [("prefill", "b")]),
    ],
)  # fmt: skip
def test_a_replica_has_the_role_as_long_as_it_can(replicas, count, done):
    assert acts(*replicas, count=count) == done


@pytest.mark.parametrize(
    ("old", "new", "count", "shares"),
    [
        (3, 1, 1, {"old": 1, "new": 0}),
        (2, 2, 1, {"old": 0, "new": 1}),
        (1, 3, 1, {"old": 0, "new": 1}),
        (4, 2, 2, {"old": 1, "new": 1}),
        (6, 1, 2, {"old": 2, "new": 0}),
        (2, 2, 3, {"old": 1, "new": 1}),
    ],
)
def test_each_revision_has_its_share_since_blocks_move_within_it_alone(old, new, count, shares):
    replicas = [
        replica(f"{name}{i}", revision=name) for name, size in (("old", old), ("new", new)) for i in range(size)
    ]
    given_to = [action.replica.revision for action in actions(replicas, current="new", count=count)]
    assert {name: given_to.count(name) for name in shares} == shares


PODS = st.lists(
    st.builds(
        replica,
        st.uuids().map(str),
        revision=st.sampled_from(["old", "new"]),
        phase=st.sampled_from(["ready", "loading", "draining", "failed"]),
        prefill=st.booleans(),
        created=st.floats(0, 9),
        reading=st.sampled_from([None, ABLE, BUSY, RuntimeState()]),
    ),
    max_size=9,
)


@given(PODS, st.integers(0, 12))
def test_what_was_done_stands_and_no_revision_is_without_a_replica_for_answers(replicas, count):
    done = {action.replica.uid: action.verb == "prefill" for action in actions(replicas, current="new", count=count)}
    after = [replica(**{**fields(r), "prefill": done.get(r.uid, r.prefill)}) for r in replicas]
    assert acts(*after, count=count) == []
    for revision in ("old", "new"):
        ready = [r for r in after if r.revision == revision and r.phase == "ready"]
        assert not ready or not all(r.prefill for r in ready)
    assert sum(r.prefill for r in after if r.phase == "ready") <= count


def fields(r):
    names = ("name", "uid", "revision", "phase", "prefill", "created", "reading")
    return {name: getattr(r, name) for name in names}
