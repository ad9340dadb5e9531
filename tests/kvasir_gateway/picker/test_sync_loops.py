"""The loops: they end when they are told to, whatever happens at that moment."""

import asyncio
import time

import pytest

from fakes.gateway import FakeObjects
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.picker.sync_loops import SyncLoops
from kvasir_kube.pod_tls import PodTls


class SilentEnvoy:
    """asked: how often its status was."""

    def __init__(self):
        self.asked = 0

    async def status(self):
        self.asked += 1


class SilentPods:
    tls = PodTls()

    async def states(self, _targets, *, deadline_s, prefixes):
        assert deadline_s > 0
        return {}


@pytest.fixture
def objects():
    return FakeObjects()


@pytest.fixture
def envoy():
    return SilentEnvoy()


@pytest.fixture
def loops(objects, envoy, tmp_path):
    picker = Picker(
        metrics=GatewayMetrics(),
        clock=time.monotonic,
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=1000),
    )
    return SyncLoops(
        picker=picker,
        objects=objects,
        states=SilentPods(),
        admin=envoy,
        directory=tmp_path,
        clock=time.monotonic,
        reading_period_s=0.05,
        reserved_names={"m": "models"},
    )


async def test_a_reserved_name_is_known_without_the_operators_word(loops, objects):
    objects.serve("s", model="m")
    objects.serve("t", model="free")
    loops._update()
    assert loops._picker.table.by_model.keys() == {"default/s", "free"}


async def test_told_to_end_while_clusters_are_accepted_they_end(loops, envoy):
    """What Envoy accepts wakes the loop that reads its status, in the very round in which it is cancelled."""
    running = asyncio.create_task(loops.run())
    async with asyncio.timeout(60):
        while envoy.asked < 2:  # noqa: ASYNC110 - a look at plain data
            await asyncio.sleep(0.005)
    loops._take_accepted(frozenset())
    running.cancel()
    ended, _ = await asyncio.wait({running}, timeout=60)
    assert ended == {running}
