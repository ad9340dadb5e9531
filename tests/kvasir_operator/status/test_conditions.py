"""Conditions of serving badly: when each begins, that it ends at a lower mark, and what it says to do."""

import pytest

from fakes.manifests import service
from fakes.situations import findings, replica
from kvasir_api.status import AutoscalingStatus
from kvasir_operator.status.compose import compose, document


def condition(kind, *, said=False, spec=None, replicas=(), **scaler):
    """Reason and message of one condition, None while it is absent. said: whether the status has it already."""
    obj = service(generation=3, **(spec or {}))
    if said:
        before, _ = compose(findings(*replicas, obj=obj, exhausted=True, imbalance=0.9, busiest="p"))
        obj = obj | {"status": document(before)}
    status, _ = compose(findings(*replicas, obj=obj, **scaler))
    return next(((c.reason, c.message) for c in status.conditions if c.type == kind), None)


@pytest.mark.parametrize(
    ("imbalance", "said", "there"),
    [(0.3, False, False), (0.5, False, True), (0.3, True, True), (0.1, True, False)],
)
def test_imbalance_begins_higher_than_it_ends(imbalance, said, there):
    found = condition("Imbalanced", said=said, imbalance=imbalance, busiest="pod-a")
    assert (found is not None) is there
    if found:
        assert found[0] == "LoadUneven"
        assert found[1].startswith("pod-a has been much fuller")


@pytest.mark.parametrize(
    ("preempting", "exhausted", "said", "there"),
    [
        (False, False, False, False),
        (True, False, False, False),
        (True, True, False, True),
        (True, False, True, True),
        (False, False, True, False),
    ],
)
def test_an_exhausted_cache_is_over_when_no_sequence_lost_it_for_a_minute(preempting, exhausted, said, there):
    found = condition("KvCacheExhausted", said=said, preempting=preempting, exhausted=exhausted)
    assert (found is not None) is there


@pytest.mark.parametrize(
    ("autoscaling", "advice"),
    [
        (None, "raise spec.replicas, lower spec.runtime.maxSequences, or set spec.runtime.kvCacheDtype to 8 bits"),
        ({"maxReplicas": 3}, "the autoscaler adds a replica"),
        ({"maxReplicas": 2}, "raise spec.autoscaling.maxReplicas, lower spec.runtime.maxSequences"),
        ({"maxReplicas": 3, "mode": "Advisory"}, "raise spec.autoscaling.maxReplicas"),
    ],
)
def test_an_exhausted_cache_names_what_is_done_or_what_to_do(autoscaling, advice):
    spec = {"autoscaling": autoscaling} if autoscaling else {}
    status = AutoscalingStatus(desired_replicas=2, raw_replicas=3) if autoscaling else None
    scaler = {
        "exhausted": True,
        "preempting": True,
        "autoscaling": status,
        "most": (autoscaling or {}).get("maxReplicas", 0),
    }
    _, message = condition("KvCacheExhausted", spec=spec, **scaler)
    assert message.startswith(f"sequences lose their KV cache to others and are computed again: {advice}")


@pytest.mark.parametrize(("fraction", "there"), [(1.0, False), (0.0, True), (0.2, True), (0.4, False)])
def test_rejected_drafts_degrade_and_an_engine_that_drafts_nothing_does_not(fraction, there):
    found = condition("Degraded", replicas=[replica("ready")], acceptance=fraction)
    assert found == (("DraftsRejected", "most tokens that replicas draft ahead are rejected") if there else None)
