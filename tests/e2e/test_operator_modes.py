"""Modes, schedules and the objective between tokens on a real control plane."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from fakes.operator_rig import kubectl
from kvasir_api.state import DecodeTotals

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
DOWN = {"windowSeconds": 3, "percent": 100, "periodSeconds": 1}
ELASTIC = {"minReplicas": 1, "maxReplicas": 3, "scaleDown": DOWN}


async def desired(rig, count):
    status = await rig.status()
    return status if status.get("desiredReplicas") == count else None


async def required(rig, count):
    status = await rig.status()
    return status if status.get("autoscaling", {}).get("rawReplicas") == count else None


async def test_an_advisory_autoscaler_reports_and_leaves_the_count_to_kubectl_scale(rig):
    await rig.apply(autoscaling={**ELASTIC, "mode": "Advisory"})
    await rig.until_condition("Ready")
    (first,) = await rig.until_pods(1)
    first.set_state(kv_pinned=950, running=8)
    status = await rig.until(lambda: required(rig, 2), lambda: rig.dump("tiny"))
    assert (status["desiredReplicas"], status["autoscaling"]["desiredReplicas"]) == (1, 2)
    inactive = next(c for c in status["conditions"] if c["type"] == "ScalingActive")
    assert (inactive["status"], inactive["reason"]) == ("False", "ModeAdvisory")
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=3", f"--namespace={rig.namespace}")
    await rig.until_pods(3)
    assert await rig.events("ScaledUp") == []


async def test_an_external_autoscaler_writes_the_count_by_the_scale_subresource(rig):
    await rig.apply(autoscaling={**ELASTIC, "mode": "External"})
    await rig.until_condition("Ready")
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=2", f"--namespace={rig.namespace}")
    await rig.until_pods(2)
    said = kubectl(
        rig.control, "get", "infsvc/tiny", "--subresource=scale", "-o", "json", f"--namespace={rig.namespace}"
    )
    assert '"selector"' in said


async def test_a_paused_autoscaler_leaves_the_count_where_it_is(rig):
    await rig.apply(autoscaling={**ELASTIC, "minReplicas": 2})
    await rig.until_condition("Ready", reason="AllReplicasReady")
    await rig.apply(autoscaling={**ELASTIC, "mode": "Paused"})
    await rig.until_condition("ScalingActive", "False", reason="ModePaused")
    for pod in await rig.until_pods(2):
        pod.set_state(kv_pinned=950, running=8)
    status = await rig.until(lambda: required(rig, 3), lambda: rig.dump("tiny"))
    assert status["desiredReplicas"] == 2


async def test_a_schedule_sets_other_bounds_while_it_is_in_force(rig):
    began = datetime.now(UTC) - timedelta(minutes=30)
    schedule = {
        "start": began.strftime("%H:%M"),
        "durationMinutes": 120,
        "days": [began.strftime("%a")],
        "timeZone": "Etc/UTC",
        "minReplicas": 2,
        "maxReplicas": 2,
    }
    await rig.apply(autoscaling={**ELASTIC, "schedules": [schedule]})
    await rig.until_pods(2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    for pod in await rig.until_pods(2):
        pod.set_state(kv_pinned=950, running=8)
    await rig.until_condition("ScalingAtMax")
    other_day = {**schedule, "days": [(began + timedelta(days=3)).strftime("%a")]}
    await rig.apply(autoscaling={**ELASTIC, "schedules": [other_day]})
    await rig.until(lambda: desired(rig, 3), lambda: rig.dump("tiny"))
    await rig.apply(autoscaling={**ELASTIC, "schedules": [{**schedule, "timeZone": "Mars/Olympus"}]})
    said = await rig.until_condition("Stalled", reason="InvalidSpec")
    assert "spec.autoscaling.schedules[0].timeZone: Mars/Olympus" in said["message"]


async def test_slow_steps_require_smaller_batches(rig):
    """Sixty sequences with steps of 90 ms are, at 50 ms, for two replicas: 33 of them at most, ten per cent apart."""
    await rig.apply(autoscaling={**ELASTIC, "itlMilliseconds": 50})
    await rig.until_condition("Ready")
    (first,) = await rig.until_pods(1)
    began = time.monotonic()

    async def two():
        # As many as can have been: twelve each time that so many have ended.
        steps = 12 * int((time.monotonic() - began) / (12 * 0.09))
        decoded = DecodeTotals(steps=steps, seconds=0.09 * steps, rows=60 * steps)
        first.set_state(kv_pinned=100, running=60, decoded=decoded)
        return await desired(rig, 2)

    status = await rig.until(two, lambda: rig.dump("tiny"))
    assert status["autoscaling"]["bindingSignal"] == "itl"
