"""The status of ModelRoutes on a world: written once, again when something changes, never to another one's object."""

import asyncio

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.gateway import model_route, service, until
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import INFERENCE_SERVICE, MODEL_ROUTE
from kvasir_operator.loop.route_reporter import RouteReporter
from kvasir_operator.loop.store import Store

ROUTE = model_route("r", rules=[{"targets": [{"service": "a"}]}])


@pytest.fixture
async def world():
    made = FakeCluster()
    await made.put(MODEL_ROUTE, {**ROUTE, "metadata": {**ROUTE["metadata"], "uid": "u", "generation": 0}})
    return made


def conditions(world):
    status = world.stored(MODEL_ROUTE, "default", "r").get("status") or {}
    return {c["type"]: (c["status"], c["lastTransitionTime"]) for c in status.get("conditions", ())}


async def test_a_status_is_written_when_it_changes_and_only_then(world):
    store, clock = Store(), FakeClock()
    reporter = RouteReporter(world, store, namespace="", clock=clock)
    running = asyncio.create_task(reporter.run())
    await until(lambda: conditions(world).keys() == {"Accepted", "ResolvedRefs"}, "the status")
    first = conditions(world)
    assert (first["Accepted"][0], first["ResolvedRefs"][0]) == ("True", "False")
    assert world.stored(MODEL_ROUTE, "default", "r")["status"]["observedGeneration"] == 1
    await until(lambda: bool(reporter._routes.objects["default", "r"].get("status")), "it has come back")
    version = world.stored(MODEL_ROUTE, "default", "r")["metadata"]["resourceVersion"]
    await reporter.report()
    assert world.stored(MODEL_ROUTE, "default", "r")["metadata"]["resourceVersion"] == version, "nothing is to be said"
    clock.advance(60)
    made = service("a")
    store.put(INFERENCE_SERVICE, {**made, "metadata": {**made["metadata"], "resourceVersion": "7"}})
    await reporter.report()
    second = conditions(world)
    assert second["ResolvedRefs"][0] == "True"
    assert second["ResolvedRefs"][1] != first["ResolvedRefs"][1]
    assert second["Accepted"] == first["Accepted"], "it has been so since then"
    await world.drop(MODEL_ROUTE, "default", "r")
    await reporter.report()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_status_that_cannot_be_written_holds_up_no_other(world):
    await world.put(MODEL_ROUTE, {**ROUTE, "metadata": {**ROUTE["metadata"], "name": "s", "uid": "v"}})
    world.errors = {"merge": [KubeError("away", status=503)]}
    reporter = RouteReporter(world, Store(), namespace="", clock=FakeClock(), period_s=3600)
    running = asyncio.create_task(reporter.run())
    await until(lambda: bool(world.stored(MODEL_ROUTE, "default", "s").get("status")), "the second one's status")
    assert conditions(world) == {}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_write_that_fails_is_tried_again(world):
    world.errors = {"merge": [KubeError("away", status=503)]}
    reporter = RouteReporter(world, Store(), namespace="", clock=FakeClock(), period_s=0.01)
    running = asyncio.create_task(reporter.run())
    await until(lambda: bool(conditions(world)), "the status")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_name_that_is_reserved_for_another_namespace_is_none_of_the_route(world):
    store = Store({"r": "models"})
    made = service("a", model="r")
    store.put(INFERENCE_SERVICE, {**made, "metadata": {**made["metadata"], "resourceVersion": "7"}})
    reporter = RouteReporter(world, store, namespace="", clock=FakeClock(), period_s=3600)
    running = asyncio.create_task(reporter.run())
    await until(lambda: bool(conditions(world)), "the status")
    found = {c["type"]: c["message"] for c in world.stored(MODEL_ROUTE, "default", "r")["status"]["conditions"]}
    assert found["Accepted"].startswith("requests for 'default/r' go by it; no service has the name 'r'")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
