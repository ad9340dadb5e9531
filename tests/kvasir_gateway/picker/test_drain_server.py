"""The drain without Envoy, and its command without a gateway; with both it is tested in the wiring tests."""

import asyncio
import subprocess
import time

import pytest
from click.testing import CliRunner

from fakes.gateway import service, table
from kvasir_gateway.__main__ import gateway
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy.admin import EnvoyAdmin
from kvasir_gateway.inflight import InflightRequest
from kvasir_gateway.picker.drain_server import DRAIN_LOCK, DRAIN_SOCKET, POLL_S, DrainServer, request_drain
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.picker.sync_loops import GatewayHealth


def is_locked(directory):
    """Whether the hook of Envoy's container waits."""
    hook = ["flock", "--shared", "--nonblock", str(directory / DRAIN_LOCK), "true"]
    return subprocess.run(hook, check=False).returncode != 0


@pytest.fixture
def picker():
    return Picker(
        metrics=GatewayMetrics(),
        clock=time.monotonic,
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=1000),
    )


@pytest.fixture
async def health(picker, tmp_path):
    """That of a gateway whose drain server runs, in a directory that another one has left."""
    (tmp_path / DRAIN_LOCK).touch()
    (tmp_path / DRAIN_SOCKET).touch()
    found, admin = GatewayHealth(), EnvoyAdmin(tmp_path)
    server = DrainServer(picker=picker, health=found, admin=admin, directory=tmp_path, settle_s=0.0)
    await server.start()
    yield found
    await server.stop()
    await admin.close()


async def test_without_an_envoy_that_answers_the_own_count_decides(health, picker, tmp_path):
    assert is_locked(tmp_path)
    picker.inflight.add(InflightRequest(id="r", service="s", address="a", uncached_tokens=1.0, added_s=0.0))
    drained = asyncio.create_task(request_drain(tmp_path, on=True))
    async with asyncio.timeout(60):
        while not health.draining:  # noqa: ASYNC110 - a look at plain data
            await asyncio.sleep(0.005)
    assert not drained.done()
    picker.inflight.remove("r")
    assert await drained == "drained"
    assert (health.missing(), is_locked(tmp_path)) == ("draining", False)
    await request_drain(tmp_path, on=False)
    assert (health.draining, is_locked(tmp_path)) == (False, True)


async def test_an_envoy_that_is_late_ends_no_drain_before_the_streams_of_an_earlier_picker(health, picker, tmp_path):
    services = table([service("s")], [])
    picker.ends.observe_active({"default.s": 1}, services)
    drained = asyncio.create_task(request_drain(tmp_path, on=True))
    async with asyncio.timeout(60):
        while not health.draining:  # noqa: ASYNC110 - a look at plain data
            await asyncio.sleep(0.005)
    done, _ = await asyncio.wait({drained}, timeout=3 * POLL_S)
    assert not done
    picker.ends.observe_active({}, services)
    assert await drained == "drained"


@pytest.mark.parametrize("undo", [[], ["--undo"]])
def test_the_command_says_that_no_gateway_answers(tmp_path, undo):
    result = CliRunner().invoke(gateway, ["drain", f"--config-dir={tmp_path}", *undo])
    assert result.exit_code == 1
    assert f"the gateway of {tmp_path} does not answer" in result.output
