"""Rollouts as exact sequences of counts, and the invariants at every step of random ones."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kvasir_operator.rollout.counts import RevisionCounts, RolloutBounds, next_counts


def plan(current, old=(), *, wanted, **bounds):
    return next_counts(current, old, wanted=wanted, bounds=RolloutBounds(**bounds))


def steps(*, old, wanted, limit=100, **bounds):
    """Counts (new, old) of a whole rollout in which every replica becomes ready at once."""
    new, seen = 0, []
    for _ in range(limit):
        counts = plan(
            RevisionCounts(revision="new", count=new, ready=new),
            [RevisionCounts(revision="old", count=old, ready=old)],
            wanted=wanted,
            **bounds,
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
    ("old", "wanted", "bounds", "sequence"),
    [
        (3, 3, {"strategy": "BlueGreen"}, [(3, 3), (3, 0)]),
        (2, 4, {"strategy": "BlueGreen"}, [(4, 2), (4, 0)]),
        (3, 3, {"strategy": "InPlace"}, [(0, 2), (1, 2), (1, 1), (2, 1), (2, 0), (3, 0)]),
        (4, 4, {"strategy": "InPlace", "max_unavailable": 2}, [(0, 2), (2, 2), (2, 0), (4, 0)]),
        (1, 1, {"strategy": "InPlace"}, [(0, 0), (1, 0)]),
        (4, 4, {"cap": 1, "keep": 1}, [(1, 4), (1, 3)]),
        (1, 1, {"cap": 1, "keep": 1}, [(1, 1)]),
        (4, 4, {"cap": 2, "max_surge": 2, "keep": 1}, [(2, 4), (2, 2)]),
        # nothing leaves that nothing may replace yet
        (4, 4, {"cap": 1, "strategy": "InPlace"}, [(0, 3), (1, 3)]),
        (4, 4, {"cap": 0, "strategy": "InPlace"}, []),
        (4, 4, {"cap": 0}, []),
        (4, 4, {"cap": 0, "yields": True}, []),
        (4, 4, {"cap": 1, "keep": 1, "yields": True}, [(1, 3)]),
        (3, 3, {"yields": True}, [(1, 2), (2, 1), (3, 0)]),
        (3, 3, {"yields": True, "max_unavailable": 0}, [(1, 3), (1, 2), (2, 2), (2, 1), (3, 1), (3, 0)]),
        (2, 2, {"yields": True, "max_unavailable": 9}, [(1, 1), (2, 0)]),
        (1, 1, {"yields": True}, [(1, 1), (1, 0)]),
    ],
)
def test_whole_rollout_of_each_strategy(old, wanted, bounds, sequence):
    assert steps(old=old, wanted=wanted, **bounds) == sequence


@pytest.mark.parametrize(
    ("current", "old", "wanted", "counts"),
    [
        # the first revision simply gets what is wanted
        (RevisionCounts(revision="new"), [], 3, {"new": 3}),
        # a new revision that never gets ready takes nothing away from the old one
        (
            RevisionCounts(revision="new", count=1),
            [RevisionCounts(revision="old", count=2, ready=2)],
            2,
            {"new": 1, "old": 2},
        ),
        # replicas of the old revision that fail leave at once, so that their place is free
        (RevisionCounts(revision="new"), [RevisionCounts(revision="old", count=2, lost=2)], 2, {"new": 1, "old": 0}),
        (RevisionCounts(revision="new", count=1), [RevisionCounts(revision="old", count=0)], 2, {"new": 2, "old": 0}),
        # those that are merely not ready stay until they are replaced: it may be a hiccup of all probes
        (RevisionCounts(revision="new"), [RevisionCounts(revision="old", count=2)], 2, {"new": 1, "old": 2}),
        # ready ones of the newest old revision are kept first
        (
            RevisionCounts(revision="new", count=1, ready=1),
            [RevisionCounts(revision="a", count=1, ready=1), RevisionCounts(revision="b", count=1, ready=1)],
            2,
            {"new": 1, "a": 0, "b": 1},
        ),
        # too many of the current revision, while an old one lingers
        (
            RevisionCounts(revision="new", count=4, ready=4),
            [RevisionCounts(revision="old", count=1, ready=1)],
            2,
            {"new": 2, "old": 0},
        ),
    ],
)
def test_next_counts(current, old, wanted, counts):
    assert plan(current, old, wanted=wanted) == counts


@st.composite
def groups(draw, name):
    count = draw(st.integers(0, 6))
    ready = draw(st.integers(0, count))
    return RevisionCounts(revision=name, count=count, ready=ready, lost=draw(st.integers(0, count - ready)))


@st.composite
def bounds(draw):
    return RolloutBounds(
        strategy=draw(st.sampled_from(["Surge", "InPlace", "BlueGreen"])),
        max_surge=draw(st.integers(1, 3)),
        max_unavailable=draw(st.integers(1, 3)),
        cap=draw(st.none() | st.integers(0, 6)),
        keep=draw(st.integers(0, 1)),
        yields=draw(st.booleans()),
    )


def promised(wanted, rules):
    """Ready replicas that a strategy leaves standing, and the most that it requests."""
    surge = {"Surge": rules.max_surge, "InPlace": 0, "BlueGreen": wanted}[rules.strategy]
    if rules.strategy == "Surge" and rules.yields:
        return min(wanted, max(1, wanted - rules.max_unavailable)), wanted + surge
    return wanted - (rules.max_unavailable if rules.strategy == "InPlace" else 0), wanted + surge


@given(groups("new"), st.lists(groups("x"), max_size=3), st.integers(0, 6), bounds())
def test_no_step_takes_too_much_or_asks_too_much(current, old, wanted, rules):
    old = [RevisionCounts(revision=str(i), count=g.count, ready=g.ready, lost=g.lost) for i, g in enumerate(old)]
    counts = next_counts(current, old, wanted=wanted, bounds=rules)
    everyone = [current, *old]
    least, most = promised(wanted, rules)
    assert set(counts) == {g.revision for g in everyone}
    grown = sum(counts.values()) > sum(g.count for g in everyone)
    assert not grown or sum(counts.values()) <= most
    ready_before = sum(g.ready for g in everyone)
    # victims are the not-ready ones first, so this many ready ones stay
    ready_after = sum(min(g.ready, counts[g.revision]) for g in everyone)
    assert ready_after >= min(ready_before, least)
    if rules.cap is not None and any(g.count for g in old):
        assert counts["new"] <= max(rules.cap, current.count)


@given(st.integers(0, 8), st.integers(0, 8), bounds())
def test_every_rollout_ends_with_the_wanted_number(old, wanted, rules):
    rules = replace(rules, cap=None, keep=0)
    sequence = steps(old=old, wanted=wanted, **asdict(rules))
    assert (sequence[-1] if sequence else (0, old)) == (wanted, 0)


class Rollout(RuleBasedStateMachine):
    """Revisions come, pods start, fail and are lost, numbers change, in any order; every step keeps its promise.

    A step is carried out at once: of a workload that shrinks the pods that are not ready go first, as in Kubernetes.
    """

    def __init__(self):
        super().__init__()
        self.number, self.wanted, self.rules = 0, 2, RolloutBounds()
        self.pods = {"0": ["new", "new"]}

    def groups(self):
        return [
            RevisionCounts(revision=r, count=len(p), ready=p.count("ready"), lost=p.count("lost"))
            for r, p in self.pods.items()
        ]

    @rule(rules=bounds())
    def change_the_rules(self, rules):
        self.rules = rules

    @rule(wanted=st.integers(0, 5))
    def scale(self, wanted):
        self.wanted = wanted

    @precondition(lambda self: len(self.pods) < 4)
    @rule()
    def change_the_spec(self):
        self.number += 1
        self.pods[str(self.number)] = []

    @rule(data=st.data(), becomes=st.sampled_from(["ready", "new", "lost"]))
    def a_pod_changes(self, data, becomes):
        places = [(revision, i) for revision, pods in self.pods.items() for i in range(len(pods))]
        if places:
            revision, i = data.draw(st.sampled_from(places))
            self.pods[revision][i] = becomes

    @rule()
    def step(self):
        *old, current = self.groups()
        counts = next_counts(current, old, wanted=self.wanted, bounds=self.rules)
        least, most = promised(self.wanted, self.rules)
        before, total = sum(g.ready for g in [*old, current]), sum(g.count for g in [*old, current])
        for revision, count in counts.items():
            pods = sorted(self.pods[revision], key=["lost", "new", "ready"].index, reverse=True)[:count]
            self.pods[revision] = pods + ["new"] * (count - len(pods))
        assert sum(p.count("ready") for p in self.pods.values()) >= min(before, least)
        after = sum(len(p) for p in self.pods.values())
        assert after <= max(total, most)
        newest = str(self.number)
        self.pods = {r: p for r, p in self.pods.items() if p or r == newest}

    def teardown(self):
        """Left alone, with pods that start, it always ends."""
        self.rules = replace(self.rules, cap=None, keep=0)
        newest = str(self.number)
        for _ in range(60):
            for revision, pods in self.pods.items():
                mended = {"new": "ready", "lost": "new" if revision == newest else "lost"}
                self.pods[revision] = [mended.get(pod, pod) for pod in pods]
            self.step()
        assert {r: len(p) for r, p in self.pods.items()} == {newest: self.wanted}


TestRollout = Rollout.TestCase
TestRollout.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
