"""Rollouts on a real control plane with stub pods: canaries that are judged, ways back, and strategies."""

import asyncio

import pytest

from kvasir_api.state import ServedTotals

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]
EDIT = {"blockSize": 32}
GOOD, BAD = ServedTotals(answered=40), ServedTotals(answered=40, failed=20)
CANARY = {"steps": [{"replicaPercent": 25, "pauseSeconds": 1}], "analysis": {"minRequests": 10}}


async def ready(rig, replicas, **rollout):
    """A service with its first revision in place; that revision's name."""
    await rig.apply(replicas=replicas, rollout=rollout)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    return (await rig.status())["rollout"]["currentRevision"]


async def phase(rig, wanted):
    """The rollout of the status once it is in that phase."""

    async def look():
        found = (await rig.status()).get("rollout", {})
        return found if found.get("phase", "") == wanted else None

    return await rig.until(look, lambda: f"phase {wanted}: {rig.dump('tiny')}")


async def new_pods(rig, old, count):
    async def look():
        found = [p for p in rig.kubelet.of() if p.revision != old and p.name.startswith("tiny-")]
        return found if len(found) == count else None

    return await rig.until(look, lambda: f"{count} new pods, have {[(p.name, p.revision) for p in rig.kubelet.of()]}")


async def test_a_canary_serves_is_judged_and_goes_on(rig):
    old = await ready(rig, 4, **CANARY)
    await rig.apply(replicas=4, rollout=CANARY, runtime=EDIT)
    (canary,) = await new_pods(rig, old, 1)
    found = await phase(rig, "Canary")
    assert found["step"] == 1
    # For its second first, which may be over by now, and then for requests.
    assert found["message"].startswith("step 1 of 1, 1 of 4 replicas, waits for ")
    await rig.until_condition("Reconciling", reason="RollingOut")

    async def waits_for_requests():
        return "waits for 10 answered requests" in (await rig.status())["rollout"].get("message", "")

    await rig.until(waits_for_requests, lambda: rig.dump("tiny"))
    await rig.until_pods(3, revision=old)

    async def counted():
        """The pod that left goes out of the numbers a little later."""
        newest, before = (await rig.status())["rollout"]["history"]
        return newest if (newest["readyReplicas"], before["name"], before["readyReplicas"]) == (1, old, 3) else None

    newest = await rig.until(counted, lambda: rig.dump("tiny"))
    assert (newest["name"], newest["number"], newest["changed"]) == (canary.revision, 2, "runtime.blockSize")
    canary.set_state(served=GOOD)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    await rig.until_pods(0, revision=old)
    assert {p.revision for p in await rig.until_pods(4)} == {canary.revision}
    rollout = await phase(rig, "")
    assert rollout["lastGoodRevision"] == canary.revision
    assert len(await rig.noted("CanaryStep")) >= 1


async def test_a_bad_canary_is_rolled_back_and_may_be_promoted(rig):
    rules = {**CANARY, "autoRollback": True}
    old = await ready(rig, 4, **rules)
    await rig.apply(replicas=4, rollout=rules, runtime=EDIT)
    (canary,) = await new_pods(rig, old, 1)
    canary.set_state(served=BAD)
    stalled = await rig.until_condition("Stalled", reason="RolledBack")
    assert stalled["message"].startswith(
        f"revision {canary.revision} was rolled back to {old}: 50.0 % of its 40 requests"
    )
    assert len(await rig.until_pods(4, revision=old)) == 4
    (event,) = await rig.noted("RolledBack")
    assert "maxErrorPercent is 5" in event
    rollout = (await rig.status())["rollout"]
    assert (rollout["rolledBackRevision"], rollout["lastGoodRevision"]) == (canary.revision, old)
    await rig.apply(replicas=4, rollout={**rules, "promote": canary.revision}, runtime=EDIT)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    await rig.until_pods(0, revision=old)
    assert {p.revision for p in await rig.until_pods(4)} == {canary.revision}


async def test_a_refused_revision_goes_back_and_the_spec_may_be_mended(rig):
    rules = {"autoRollback": True}
    await rig.claim()
    old = await ready(rig, 2, **rules)
    await rig.apply(replicas=2, rollout=rules, model={"uri": "pvc://models/broken"})
    stalled = await rig.until_condition("Stalled", reason="RolledBack")
    assert "has no config.json" in stalled["message"]
    assert len(await rig.until_pods(2, revision=old)) == 2
    await rig.apply(replicas=2, rollout=rules)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    assert (await rig.status())["rollout"]["currentRevision"] == old


async def test_a_service_without_an_image_takes_the_operators_next_one_and_one_that_serves_keeps_its_own(still):
    still.kubelet.unknown_image = "nowhere/runtime:1"
    still.start("--allow-model-dir=/srv", "--runtime-image-cpu=nowhere/runtime:1")
    await still.apply(replicas=2)
    ready = await still.until_condition("Ready", status="False", reason="ImagePullFailed")
    words = "image nowhere/runtime:1 cannot be pulled: no registry has nowhere/runtime:1"
    assert ready["message"].endswith(words)
    first = (await still.status())["rollout"]["currentRevision"]
    still.kill("--allow-model-dir=/srv", "--runtime-image-cpu=runtime:2")
    await still.until_condition("Ready", reason="AllReplicasReady")
    rollout = (await still.status())["rollout"]
    assert rollout["currentRevision"] != first
    assert rollout["history"][0]["changed"] == "runtimeImage"
    pods = await still.pod_uids()
    still.kill("--allow-model-dir=/srv", "--runtime-image-cpu=runtime:3")
    await still.apply(replicas=3)
    await still.until_condition("Ready", reason="AllReplicasReady")
    assert pods < await still.pod_uids()
    assert (await still.status())["rollout"]["currentRevision"] == rollout["currentRevision"]


async def test_a_paused_rollout_stands_still_and_an_aborted_one_goes_back(rig):
    old = await ready(rig, 3)
    rig.kubelet.hold = True
    await rig.apply(replicas=3, runtime=EDIT)
    (new,) = await new_pods(rig, old, 1)
    await rig.apply(replicas=3, runtime=EDIT, rollout={"paused": True})
    await phase(rig, "Paused")
    rig.kubelet.hold = False
    new.set_state(phase="ready")
    await rig.until_condition("Reconciling", reason="RolloutPaused")
    await rig.heard()
    assert len([p for p in rig.kubelet.of() if p.revision != old]) == 1
    await rig.apply(replicas=3, runtime=EDIT, rollout={"abort": new.revision})
    await rig.until_condition("Stalled", reason="RolledBack")
    assert len(await rig.until_pods(3, revision=old)) == 3
    assert len(await rig.until_pods(3)) == 3


@pytest.mark.parametrize(
    ("strategy", "most", "least"), [("InPlace", 3, 2), ("BlueGreen", 6, 3)], ids=["in place", "blue-green"]
)
async def test_each_strategy_keeps_its_promise_at_every_moment(rig, strategy, most, least):
    rules = {"strategy": strategy}
    old = await ready(rig, 3, **rules)
    seen = []

    async def watch():
        while True:
            seen.append([p.revision == old for p in rig.kubelet.of() if p.state.phase == "ready"])
            await asyncio.sleep(0.02)

    watcher = asyncio.create_task(watch())
    await rig.apply(replicas=3, rollout=rules, runtime=EDIT)

    async def replaced():
        return old not in {p.revision for p in rig.kubelet.of()} and len(rig.kubelet.of()) == 3

    await rig.until(replaced, lambda: rig.dump("tiny"))
    await rig.until_condition("Ready", reason="AllReplicasReady")
    watcher.cancel()
    assert max(len(pods) for pods in seen) <= most
    assert min(len(pods) for pods in seen) >= least
    if strategy == "BlueGreen":
        # the old ones leave only when all new ones serve
        assert all(pods.count(False) == 3 for pods in seen if pods.count(True) < 3)


async def test_a_surge_without_a_spare_accelerator_goes_in_place_and_surges_again(rig):
    """Four devices: three of the service, one of another. The new replica waits; nothing leaves until that is allowed,
    then one; when the other service gives its device back, nothing more."""
    device = {"resources": {"accelerator": {"count": 1}}, "model": {"uri": "file:///srv/tiny", "inspect": "Never"}}
    await rig.apply("other", **{**device, "model": {"uri": "file:///srv/other", "inspect": "Never"}})
    await rig.until_condition("Ready", name="other", reason="AllReplicasReady")
    await rig.apply(replicas=3, **device)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    old = (await rig.status())["rollout"]["currentRevision"]
    fewest, watcher = watched(rig)
    rig.kubelet.hold = True
    rules = {"inPlaceAfterSeconds": 1, "maxUnavailable": 0}
    await rig.apply(replicas=3, runtime=EDIT, rollout=rules, **device)
    await strategy(rig, "Surge", "maxUnavailable 0 keeps the old ones")
    assert len(rig.kubelet.of(old)) == 3
    await rig.apply(replicas=3, runtime=EDIT, rollout={**rules, "maxUnavailable": 1}, **device)
    told = await strategy(rig, "InPlace", "old ones leave first, at most 1 at a time")
    assert await rig.noted("RollingInPlace") == [told["message"]]
    await rig.until_condition("Reconciling", reason="RollingOut")
    (first,) = await new_pods(rig, old, 1)
    await rig.heard()
    assert len(rig.kubelet.of(old)) == 2, "the promise: none more before the first new one serves"
    await rig.apply("other", **{**device, "replicas": 0, "model": {"uri": "file:///srv/other", "inspect": "Never"}})
    await new_pods(rig, old, 2)
    await strategy(rig, "Surge", "")
    rig.kubelet.hold = False
    for pod in rig.kubelet.of(first.revision):
        await rig.kubelet.ready(pod.name)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    assert {p.revision for p in await rig.until_pods(3)} == {first.revision}
    watcher.cancel()
    assert min(fewest) >= 2
    assert (await strategy(rig, "", ""))["lastGoodRevision"] == first.revision


async def strategy(rig, wanted, words):
    """The rollout of the status once it goes that way and says so."""

    async def look():
        found = (await rig.status()).get("rollout", {})
        return found if found.get("strategy", "") == wanted and words in found.get("message", "") else None

    return await rig.until(look, lambda: f"strategy {wanted!r}, {words!r}: {rig.dump('tiny')}")


def watched(rig):
    """How many replicas served, again and again, and the task that looks."""
    seen = []

    async def watch():
        while True:
            seen.append(sum(p.state.phase == "ready" for p in rig.kubelet.of() if p.name.startswith("tiny-")))
            await asyncio.sleep(0.02)

    return seen, asyncio.create_task(watch())
