"""Every field of a spec that shapes no pod has an effect on a cluster: of two services that differ in it alone, the
statuses or the numbers of pods differ as they should. Those that shape pods are in the file about fields.
"""

import asyncio
import copy
import json
from dataclasses import dataclass
from typing import Any

import pytest

from fakes.effects import EFFECTS, SMALL, Effect
from kvasir_kube.kinds import ACCELERATOR_CLASS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
CLASSES = {"spot": ("4Gi", 1, True), "small": ("4Gi", 2, False), "large": ("8Gi", 9, False)}
PATHS = sorted(EFFECTS)
HALVES = {
    "scaling": [p for p in PATHS if not p.startswith("rollout.")],
    "rollouts": [p for p in PATHS if p[:2] == "ro"],
}
"""Each half is a namespace of its own, since a node of stubs has 254 addresses."""


@dataclass(slots=True)
class Side:
    """One of the two services of a case."""

    name: str
    effect: Effect
    spec: dict[str, Any]
    then: dict[str, Any]
    wanted: Any
    old: str = ""


def merged(*parts):
    found = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = merged(found[name], value) if both else copy.deepcopy(value)
    return found


def put(path, value):
    """A spec of this field alone; of a list the whole is given."""
    for part in reversed(path.partition("[]")[0].split(".")):
        value = {part: value}
    return value


def side(path, number, namespace):
    effect = EFFECTS[path]
    given = put(path, effect.values[number])
    name = f"{path.lower().replace('.', '-').replace('[]', '')}-{number}"[-40:].strip("-")
    model = {"model": {"uri": f"file:///srv/{name}"}}
    spec = merged(SMALL, model, {"replicas": effect.replicas}, effect.beside, {} if effect.later else given)
    told = (spec, merged(spec, effect.then, given), effect.shows[number])
    return Side(name, effect, *json.loads(json.dumps(told).replace("{id}", namespace)))


@pytest.fixture
async def classes(rig):
    made = {f"{name}-{rig.namespace}": row for name, row in CLASSES.items()}
    for name, (memory, price, spot) in made.items():
        spec = {"memory": memory, "pricePerHour": price, "spot": spot}
        await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": spec}, manager="admin")
    yield
    for name in made:
        await rig.client.delete(ACCELERATOR_CLASS, "", name)


@pytest.mark.parametrize("half", sorted(HALVES))
async def test_of_two_services_that_differ_in_a_field_something_differs(rig, classes, half):
    pairs = {path: [side(path, number, rig.namespace) for number in (0, 1)] for path in HALVES[half]}
    everyone = [one for pair in pairs.values() for one in pair]
    await asyncio.gather(*(begin(rig, one) for one in everyone))
    rig.kubelet.hold = True
    for one in everyone:
        for pod in pods(rig, one)[:1]:
            pod.set_state(**one.effect.says)
    await rig.heard()  # or a service that rested has been without load for a whole window
    await asyncio.gather(*(go_on(rig, one) for one in everyone))
    found = {}

    async def as_it_should():
        """Both of a pair at the same moment; a pair that was seen so once is done."""
        for path, pair in pairs.items():
            if path not in found and [await seen(rig, one) for one in pair] == [one.wanted for one in pair]:
                found[path] = True
        return len(found) == len(pairs)

    async def missing():
        return {path: [await seen(rig, one) for one in pairs[path]] for path in pairs if path not in found}

    try:
        await rig.until(as_it_should, lambda: f"effects of {sorted(set(pairs) - set(found))}", s=120.0)
    except AssertionError as error:
        raise AssertionError(f"{await missing()}") from error


async def begin(rig, one):
    await rig.apply(one.name, **one.spec)
    if one.spec["replicas"]:
        await rig.until_condition("Ready", name=one.name, reason="AllReplicasReady")
    one.old = (await rig.status(one.name)).get("rollout", {}).get("currentRevision", "")


async def go_on(rig, one):
    """Applies the rest of the service's spec and sets the state of its new pods."""
    effect = one.effect
    if one.then == one.spec:
        return
    await rig.apply(one.name, **one.then)
    if effect.new_says:

        async def new():
            return next((p for p in pods(rig, one) if p.revision != one.old), None)

        pod = await rig.until(new, lambda: f"a new pod of {one.name}: {rig.dump(one.name)}")
        pod.set_state(**effect.new_says)


def pods(rig, one):
    """Oldest first, without those that leave."""
    return [pod for pod in rig.kubelet.of() if pod.name.startswith(f"{one.name}-")]


async def seen(rig, one):
    """What the case compares. New pods that shall serve get ready whenever it is looked."""
    new = [pod for pod in pods(rig, one) if pod.revision != one.old]
    for pod in new if one.effect.serve else ():
        if pod.state.phase == "loading":
            await rig.kubelet.ready(pod.name)
    status = await rig.status(one.name)
    conditions = {c["type"]: c["reason"] for c in status.get("conditions", ())}
    rollout = status.get("rollout", {})
    match one.effect.look:
        case "desired":
            return status.get("desiredReplicas")
        case "new":
            return len(new)
        case "old":
            return len([pod for pod in pods(rig, one) if pod.revision == one.old])
        case "phase":
            return rollout.get("phase", "") if rollout.get("currentRevision") != one.old else None
        case "stalled":
            return conditions.get("Stalled", "")
        case "class":
            return rollout.get("acceleratorClass")
        case "fit":
            return status.get("capacity", {}).get("fit", "") if conditions.get("Ready") == "AllReplicasReady" else None
