"""The state port: a gateway that drains is not ready, lives, and says that it drains."""

import aiohttp

from fakes.clock import Now
from kvasir_api import names
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.placement_feed import PlacementFeed
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.picker.state_server import StateServer
from kvasir_gateway.picker.sync_loops import GatewayHealth
from kvasir_kube import process


async def test_livez_says_that_the_gateway_drains_and_does_not_fail():
    """Else the kubelet would end the streams for which it drains."""
    metrics = GatewayMetrics()
    picker = Picker(
        metrics=metrics, clock=Now(), draw=lambda: 0, policy=ChoicePolicy(), bounds=RequestBounds(max_body_bytes=1000)
    )
    health = GatewayHealth(tenants_read=True, envoy_live=True, envoy_accepted=True)
    health.synced.set()
    listening = process.listening("127.0.0.1", 0)
    server = StateServer(picker=picker, metrics=metrics, health=health, feed=PlacementFeed(list), listening=listening)
    await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{listening.getsockname()[1]}") as session:

        async def page(path):
            async with session.get(path) as response:
                return response.status, await response.text()

        assert [await page(path) for path in (names.PATH_LIVEZ, names.PATH_READYZ)] == [(200, "ok\n"), (200, "ok\n")]
        health.draining = True
        assert await page(names.PATH_LIVEZ) == (200, "draining\n")
        assert await page(names.PATH_READYZ) == (503, "draining\n")
    await server.stop()
