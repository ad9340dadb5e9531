"""A surge without room for another accelerator: when it yields, what it never takes, and when it surges again."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fakes.manifests import service
from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed
from kvasir_operator.rollout.plan import plan
from kvasir_operator.rollout.target import rollout_target

NOW = 10_000.0
FULL = "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu."
GPU = {"nvidia.com/gpu": "1", "memory": "4Gi"}


def revision(name, number, *, limits=GPU, **pod):
    template = {"spec": {"containers": [{"resources": {"limits": limits}}], **pod}}
    return {"metadata": owned(name), "revision": number, "data": {"inputs": {}, "template": template}}


def owned(name):
    owner = {"controller": True, "uid": "uid-tiny"}
    return {"name": f"tiny-{name}", "labels": {names.LABEL_REVISION: name}, "ownerReferences": [owner]}


def waiting(*, waited=240.0, words=FULL):
    return Replica(
        name="n0", revision="new", phase="unschedulable", assigned=False, created=NOW - waited, last_words=words
    )


def world(*pods, old=3, revisions=None, status=None, **rollout):
    serving = [Replica(name=f"o{i}", revision="old", phase="ready", reading=RuntimeState()) for i in range(old)]
    counts = {"old": old, "new": sum(p.revision == "new" for p in pods)}
    obj = service(rollout=rollout) | {"status": {"rollout": {"currentRevision": "new", **(status or {})}}}
    return observed(
        obj,
        revisions=revisions or [revision("old", 1), revision("new", 2)],
        deployments=[{"metadata": owned(r), "spec": {"replicas": n}} for r, n in counts.items()],
        replicas=[*serving, *pods],
        svc=None,
    )


PLACED = Replica(name="n1", revision="new", phase="loading")
BEFORE = {"strategy": "InPlace"}
CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
CLAIMED = [revision("old", 1, limits={}, resourceClaims=CLAIMS), revision("new", 2, limits={}, resourceClaims=CLAIMS)]


@pytest.mark.parametrize(
    ("seen", "strategy"),
    [
        (world(waiting()), "InPlace"),
        (world(waiting(waited=239.0)), "Surge"),
        (world(waiting(waited=60.0), inPlaceAfterSeconds=60), "InPlace"),
        (world(waiting(waited=9_000.0), inPlaceAfterSeconds=0), "Surge"),
        (world(waiting(), strategy="BlueGreen"), "BlueGreen"),
        (world(waiting(), strategy="InPlace"), "InPlace"),
        # what is missing is no accelerator, or not one that an old replica holds
        (world(waiting(words="0/3 nodes are available: 3 Insufficient memory.")), "Surge"),
        (world(waiting(), revisions=[revision("old", 1, limits={}), revision("new", 2)]), "Surge"),
        (world(waiting(), revisions=[revision("old", 1), revision("new", 2, nodeSelector={"a": "b"})]), "Surge"),
        (world(waiting(words="0/1 nodes are available: 1 cannot allocate all claims."), revisions=CLAIMED), "InPlace"),
        (world(waiting(words="0/1 nodes are available: 1 cannot allocate all claims.")), "Surge"),
        # one of two finds room, so that there is some
        (world(waiting(), PLACED, maxSurge=2), "Surge"),
        # between two steps nobody need wait
        (world(PLACED, old=2, status=BEFORE), "InPlace"),
        (world(PLACED, old=2), "Surge"),
        (world(PLACED, old=3, status=BEFORE), "Surge"),
        (world(PLACED, old=2, status={**BEFORE, "currentRevision": "other"}), "Surge"),
        # nothing moves while it stands still on purpose, or where nothing is replaced
        (world(waiting(), paused=True), ""),
        (world(waiting(), old=0), ""),
    ],
)
def test_when_a_surge_goes_in_place(seen, strategy):
    assert rollout_target(seen, current="new", wanted=3, now=NOW).strategy == strategy


@pytest.mark.parametrize(
    ("rollout", "wanted", "counts", "words"),
    [
        ({}, 3, {"new": 1, "old": 2}, "old ones leave first, at most 1 at a time"),
        ({"maxUnavailable": 2}, 3, {"new": 1, "old": 1}, "old ones leave first, at most 2 at a time"),
        ({"maxUnavailable": 9}, 3, {"new": 1, "old": 1}, "old ones leave first, at most 9 at a time"),
        ({"maxUnavailable": 0}, 3, {"new": 1, "old": 3}, "spec.rollout.maxUnavailable 0 keeps the old ones"),
        ({}, 1, {"new": 1, "old": 1}, "the last one that serves stays; spec.rollout.strategy InPlace would interrupt"),
    ],
)
def test_how_far_it_yields_and_what_it_says(rollout, wanted, counts, words):
    seen = world(waiting(), old=wanted, **rollout)
    planned = plan(seen, "new", wanted=wanted, now=NOW)
    assert words in planned.target.why
    assert {step.verb for step in planned.actions} <= {"drain"}
    leaving = [step.replica.revision for step in planned.actions]
    assert {id_: count - leaving.count(id_) for id_, count in planned.counts.items()} == counts


def test_a_canary_yields_within_its_step():
    seen = world(waiting(), steps=[{"replicaPercent": 30}])
    planned = plan(seen, "new", wanted=3, now=NOW)
    head = planned.target
    assert (head.strategy, head.cap, head.phase) == ("InPlace", 1, "Progressing")
    assert len(planned.actions) == 1


def test_the_way_back_yields_too_and_keeps_its_reason():
    back = Replica(name="o0", revision="old", phase="unschedulable", assigned=False, created=NOW - 240, last_words=FULL)
    seen = world(PLACED, back, old=0, status={"lastGoodRevision": "old"}, abort="new", maxUnavailable=2)
    head = rollout_target(seen, current="new", wanted=2, now=NOW)
    assert (head.revision, head.strategy, head.why) == ("old", "InPlace", "spec.rollout.abort names it")


class Cluster(RuleBasedStateMachine):
    """A service on a few devices that others want too; pods are placed where one is free, and drain when asked.

    Only when a new replica has waited for long may fewer be ready than wanted, and never fewer than promised.
    """

    @initialize(wanted=st.integers(1, 4), spare=st.integers(0, 2), missing=st.integers(0, 3), surge=st.integers(1, 2))
    def begin(self, wanted, spare, missing, surge):
        self.wanted, self.devices, self.now, self.waited_long = wanted, wanted + spare, NOW, False
        self.rules = {"maxUnavailable": missing, "maxSurge": surge}
        self.pods, self.counts, self.number = [], {"old": wanted, "new": 0}, 0
        self.status = {"currentRevision": "new"}
        self.create("old")
        self.pass_time(10)

    def create(self, id_):
        for _ in range(self.counts[id_] - sum(p["revision"] == id_ for p in self.pods)):
            self.number += 1
            made = {"name": f"p{self.number:03}", "revision": id_, "created": self.now, "assigned": False}
            self.pods.append({**made, "ready": False, "drain_since": None, "drained": False})

    def seen(self):
        def phase(p):
            if not p["assigned"]:
                return "unschedulable"
            return "draining" if p["drain_since"] is not None else "ready" if p["ready"] else "loading"

        pods = [
            Replica(
                **{k: p[k] for k in ("name", "revision", "created", "assigned", "drain_since", "drained")},
                phase=phase(p),
                draining_s=self.now - (self.now if p["drain_since"] is None else p["drain_since"]),
                pending=not p["assigned"],
                last_words="" if p["assigned"] else FULL,
                reading=RuntimeState(phase=phase(p)) if p["assigned"] else None,
            )
            for p in self.pods
        ]
        return observed(
            service(rollout=self.rules) | {"status": {"rollout": self.status}},
            revisions=[revision("old", 1), revision("new", 2)],
            deployments=[
                {"metadata": owned(r), "spec": {"replicas": n}} for r, n in self.counts.items() if n or r == "new"
            ],
            replicas=pods,
            svc=None,
        )

    def serving(self):
        return sum(p["ready"] and p["drain_since"] is None for p in self.pods)

    @rule(seconds=st.sampled_from([5, 100, 300]))
    def pass_time(self, seconds):
        """Whoever was placed is ready by now; whoever waits takes what is free."""
        for p in self.pods:
            p["ready"] = p["assigned"]
        for p in sorted((p for p in self.pods if not p["assigned"]), key=lambda p: p["name"]):
            p["assigned"] = sum(q["assigned"] for q in self.pods) < self.devices
        self.now += seconds
        self.waited_long |= any(not p["assigned"] and self.now - p["created"] >= 240 for p in self.pods)

    @rule(devices=st.integers(1, 6))
    def others_come_and_go(self, devices):
        self.devices = max(devices, sum(p["assigned"] for p in self.pods))

    @rule(wanted=st.integers(1, 4))
    def scale(self, wanted):
        self.wanted = wanted

    @rule()
    def step(self):
        seen, before = self.seen(), self.serving()
        planned = plan(seen, "new", wanted=self.wanted, now=self.now)
        self.status = {"currentRevision": "new", "strategy": planned.target.strategy}
        for one in planned.actions:
            p = next(p for p in self.pods if p["name"] == one.replica.name)
            if one.verb == "drain":
                p["drain_since"] = self.now
            elif one.verb == "finish":
                p["drained"] = True
            elif one.verb == "release":
                p.update(drain_since=None, drained=False)
        # A pod that began to drain serves what it has, so the promise is about those that go on.
        missing = self.rules["maxUnavailable"] if self.waited_long else 0
        assert self.serving() >= min(before, self.wanted, max(1, self.wanted - missing))
        self.counts = {"old": 0, **planned.counts}
        for id_, count in self.counts.items():
            mine = [p for p in self.pods if p["revision"] == id_]
            mine.sort(key=lambda p: (p["assigned"], not p["drained"]))
            for p in mine[: max(0, len(mine) - count)]:
                self.pods.remove(p)
            self.create(id_)

    def teardown(self):
        """With one more device it always ends; without one it does where something may be missing."""
        yields = self.rules["maxUnavailable"] > 0 and self.wanted > 1
        # Others gave back what was wanted, or nothing could be as it should be.
        self.devices = max(self.devices, self.wanted + (0 if yields else 1))
        for _ in range(80):
            self.pass_time(100)
            self.step()
        self.pass_time(100)
        self.pass_time(100)
        assert [p["revision"] for p in self.pods if p["ready"]] == ["new"] * self.wanted
        assert len(self.pods) == self.wanted


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
