"""Rollouts as exact sequences of counts, and the invariants at every step of random ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_operator.rollout.planner import Group, next_counts


def plan(current, old=(), *, wanted, max_surge=1):
    return next_counts(current, old, wanted=wanted, max_surge=max_surge)


def steps(*, old, wanted, max_surge, limit=100):
    """Counts (new, old) of a whole rollout in which every replica becomes ready at once."""
    new, seen = 0, []
    for _ in range(limit):
        counts = plan(
            Group(revision="new", count=new, ready=new),
            [Group(revision="old", count=old, ready=old)],
            wanted=wanted,
            max_surge=max_surge,
        )
        if (counts["new"], counts["old"]) == (new, old):
            return seen
        new, old = counts["new"], counts["old"]
        seen.append((new, old))
    raise AssertionError(f"no end in sight: {seen[-3:]}")


@pytest.mark.parametrize(
    ("old", "wanted", "max_surge", "sequence"),
    [
        (1, 1, 1, [(1, 1), (1, 0)]),
        (3, 3, 1, [(1, 3), (1, 2), (2, 2), (2, 1), (3, 1), (3, 0)]),
        (4, 4, 2, [(2, 4), (2, 2), (4, 2), (4, 0)]),
        (2, 4, 1, [(3, 2), (3, 1), (4, 1), (4, 0)]),
        (4, 2, 1, [(0, 2), (1, 2), (1, 1), (2, 1), (2, 0)]),
        (3, 0, 1, [(0, 0)]),
    ],
)
def test_whole_rollout_step_by_step(old, wanted, max_surge, sequence):
    assert steps(old=old, wanted=wanted, max_surge=max_surge) == sequence


@pytest.mark.parametrize(
    ("current", "old", "wanted", "counts"),
    [
        # the first revision simply gets what is wanted
        (Group(revision="new"), [], 3, {"new": 3}),
        # a new revision that never gets ready takes nothing away from the old one
        (Group(revision="new", count=1), [Group(revision="old", count=2, ready=2)], 2, {"new": 1, "old": 2}),
        # replicas of the old revision that fail leave at once, so that their place is free
        (Group(revision="new"), [Group(revision="old", count=2, lost=2)], 2, {"new": 1, "old": 0}),
        (Group(revision="new", count=1), [Group(revision="old", count=0)], 2, {"new": 2, "old": 0}),
        # those that are merely not ready stay until they are replaced: it may be a hiccup of all probes
        (Group(revision="new"), [Group(revision="old", count=2)], 2, {"new": 1, "old": 2}),
        # ready ones of the newest old revision are kept first
        (
            Group(revision="new", count=1, ready=1),
            [Group(revision="a", count=1, ready=1), Group(revision="b", count=1, ready=1)],
            2,
            {"new": 1, "a": 0, "b": 1},
        ),
        # too many of the current revision, while an old one lingers
        (Group(revision="new", count=4, ready=4), [Group(revision="old", count=1, ready=1)], 2, {"new": 2, "old": 0}),
    ],
)
def test_next_counts(current, old, wanted, counts):
    assert plan(current, old, wanted=wanted) == counts


@st.composite
def groups(draw, name):
    count = draw(st.integers(0, 6))
    ready = draw(st.integers(0, count))
    return Group(revision=name, count=count, ready=ready, lost=draw(st.integers(0, count - ready)))


@given(groups("new"), st.lists(groups("x"), max_size=3), st.integers(0, 6), st.integers(1, 3))
def test_no_step_takes_too_much_or_asks_too_much(current, old, wanted, max_surge):
    old = [Group(revision=str(i), count=g.count, ready=g.ready, lost=g.lost) for i, g in enumerate(old)]
    counts = plan(current, old, wanted=wanted, max_surge=max_surge)
    everyone = [current, *old]
    assert set(counts) == {g.revision for g in everyone}
    grown = sum(counts.values()) > sum(g.count for g in everyone)
    assert not grown or sum(counts.values()) <= wanted + max_surge
    ready_before = sum(g.ready for g in everyone)
    # victims are the not-ready ones first, so this many ready ones stay
    ready_after = sum(min(g.ready, counts[g.revision]) for g in everyone)
    assert ready_after >= min(ready_before, wanted)


@given(st.integers(0, 8), st.integers(0, 8), st.integers(1, 4))
def test_every_rollout_ends_with_the_wanted_number(old, wanted, max_surge):
    sequence = steps(old=old, wanted=wanted, max_surge=max_surge)
    assert (sequence[-1] if sequence else (0, old)) == (wanted, 0)
