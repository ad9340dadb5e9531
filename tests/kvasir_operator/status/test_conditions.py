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
        (None, "raise spec.replicas, lower spec.runtime.maxSequences, or set spec.runtime.kvCacheDtype to fewer bits"),
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


@pytest.mark.parametrize(
    ("drafter", "fraction", "there"),
    [
        ("ngram", 1.0, False),
        ("suffix", 0.0, True),
        ("ngram", 0.2, True),
        ("ngram", 0.4, False),
        ("auto", 0.1, False),
    ],
)
def test_drafts_that_are_rejected_degrade_where_the_spec_requests_them_in_every_step(drafter, fraction, there):
    spec = {"runtime": {"speculation": drafter}}
    found = condition("Degraded", spec=spec, replicas=[replica("ready")], acceptance=fraction)
    words = f"of the tokens that replicas draft ahead {fraction:.0%} are kept; runtime.speculation: auto"
    assert (found is not None) == there
    assert not there or (found[0] == "LowAcceptance" and found[1].startswith(words))


def test_a_draft_model_whose_drafts_are_rejected_is_named_with_what_was_done():
    spec = {"runtime": {"speculation": "hf://org/small@main"}}
    reason, message = condition("Degraded", spec=spec, replicas=[replica("ready")], acceptance=0.1)
    assert reason == "LowAcceptance"
    assert message == (
        "of the tokens that replicas draft ahead 10% are kept; drafts that do not pay are left out, but"
        " hf://org/small@main takes memory: name a nearer model or auto"
    )


def test_of_a_layer_of_the_checkpoint_whose_drafts_are_rejected_the_memory_is_named():
    spec = {"runtime": {"speculation": "mtp"}}
    _, message = condition("Degraded", spec=spec, replicas=[replica("ready")], acceptance=0.1)
    assert message.endswith("but the layer that drafts takes memory: name suffix or off")


MANY = tuple(f"{'x' * 50}-{i:05}" for i in range(1000))


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("MetricsStale", {"missing": MANY}),
        ("MetricsStale", {"contradictions": tuple((pod, "running is -1") for pod in MANY)}),
        ("Degraded", {"replicas": tuple(replica("ready", name=pod, unhealthy=("GPU-0",)) for pod in MANY)}),
    ],
)
def test_a_thousand_replicas_with_one_trouble_do_not_stop_the_status(kind, found):
    _, message = condition(kind, **found)
    assert MANY[0] in message
    assert len(message) <= 32_768


def test_a_message_says_how_many_it_does_not_name():
    _, message = condition("MetricsStale", missing=MANY[:12])
    assert message.endswith(f"{MANY[9]} and 2 more")
