"""Wires the picker: ext-proc server, state server, loops. Called by the command and by tests."""

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy.admin import EnvoyAdmin
from kvasir_gateway.hold_queue import HoldLimits
from kvasir_gateway.picker.drain_server import DrainServer
from kvasir_gateway.picker.ended_request_reader import EndedRequestReader
from kvasir_gateway.picker.endpoint_picker_server import EndpointPickerServer, EndpointPickerSettings
from kvasir_gateway.picker.ext_proc_server import ExtProcServer
from kvasir_gateway.picker.held_server import HeldServer
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.peers import PeerGateways
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.placement_feed import PlacementFeed
from kvasir_gateway.picker.request_holder import RequestHolder
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.picker.sources import ObjectSource, StateSource
from kvasir_gateway.picker.state_server import StateServer
from kvasir_gateway.picker.sync_loops import SyncLoops
from kvasir_gateway.picker.tenant_source import TenantSource

LOG = logging.getLogger(__name__)
Loop = Callable[[], Coroutine[Any, Any, None]]
DRAW_LIMIT = 1 << 32
STOP_GRACE_S = 0.25
"""A decision takes milliseconds; Envoy's log streams never end by themselves, so the stop always takes this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerSettings:
    """Settings of the process. directory: shared with Envoy. reserved_names: namespaces by the model names that are
    theirs alone. audit: takes a line for each request, None for none."""

    directory: Path
    bounds: RequestBounds = field(default_factory=RequestBounds)
    reading_period_s: float = 0.5
    drain_settle_s: float = 5.0
    endpoint_picker: EndpointPickerSettings | None = None
    policy: ChoicePolicy = field(default_factory=ChoicePolicy)
    hold: HoldLimits = field(default_factory=HoldLimits)
    reserved_names: Mapping[str, str] = field(default_factory=dict)
    audit: Callable[[bytes], None] | None = None


async def run(
    settings: PickerSettings,
    *,
    state_port: socket.socket,
    objects: ObjectSource,
    states: StateSource,
    tenants: TenantSource,
    stop: asyncio.Event,
) -> None:
    """Serve until stop is set, or until a loop fails, which is raised. state_port: listens already."""
    metrics, feed, directory = GatewayMetrics(), PlacementFeed(objects.gateways), settings.directory
    picker = _picker(settings, metrics, feed)
    ended = EndedRequestReader(picker.tenants.audit, partial(_ops_urls, picker), tls=states.tls)
    holder, admin = RequestHolder(picker), EnvoyAdmin(directory)
    loops = SyncLoops(
        picker=picker,
        objects=objects,
        states=states,
        admin=admin,
        directory=directory,
        clock=time.monotonic,
        reading_period_s=settings.reading_period_s,
        reserved_names=settings.reserved_names,
    )
    most_bytes = settings.bounds.max_body_bytes
    ext_proc = ExtProcServer(picker, holder, loops.clusters, directory=directory, max_body_bytes=most_bytes)
    state_server = StateServer(picker=picker, metrics=metrics, health=loops.health, feed=feed, listening=state_port)
    peers = _peers(picker, feed, objects)
    settle_s = settings.drain_settle_s
    drain_server = DrainServer(picker=picker, health=loops.health, admin=admin, directory=directory, settle_s=settle_s)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(state_port.close)
        stack.push_async_callback(admin.close)
        stack.push_async_callback(state_server.stop)
        await state_server.start()
        await ext_proc.start()
        # Only now, since stop removes the socket: where start failed, the socket is another picker's.
        stack.push_async_callback(ext_proc.stop, STOP_GRACE_S)
        held_server = HeldServer(picker, directory)
        await held_server.start()
        stack.push_async_callback(held_server.stop)
        await drain_server.start()
        stack.push_async_callback(drain_server.stop)
        LOG.info("picker at %s, /state on %s:%d", directory, *state_port.getsockname()[:2])

        async def route() -> None:
            """No request is routed before it is known which need a key."""
            await tenants.synced.wait()
            loops.health.tenants_read = True
            await loops.run()

        async def answer() -> None:
            """Until services are known each of their names would be refused as unknown: as if there were no picker."""
            await loops.health.synced.wait()
            await ext_proc.start_requests()
            await _serve_other_proxies(settings, picker, stack)

        follow_tenants = partial(tenants.run, picker.tenants.take, loops.verify)
        await _until(stop, (route, answer, follow_tenants, holder.run, peers.run, ended.run))


def _peers(picker: Picker, feed: PlacementFeed, objects: ObjectSource) -> PeerGateways:
    return PeerGateways(
        picker.router,
        own=feed.gateway,
        found=objects.gateways,
        used=picker.tenants.used_elsewhere,
        left=picker.tenants.gateway_left,
        clock=time.monotonic,
    )


def _ops_urls(picker: Picker) -> dict[str, str]:
    return {endpoint.address: endpoint.ops_url for endpoint in picker.table.endpoints()}


async def _serve_other_proxies(settings: PickerSettings, picker: Picker, stack: contextlib.AsyncExitStack) -> None:
    if settings.endpoint_picker is not None:
        server = EndpointPickerServer(
            picker,
            settings.endpoint_picker,
            max_body_bytes=settings.bounds.max_body_bytes,
            max_held_bytes=settings.hold.max_bytes,
        )
        await server.start()
        stack.push_async_callback(server.stop, STOP_GRACE_S)


def _picker(settings: PickerSettings, metrics: GatewayMetrics, feed: PlacementFeed) -> Picker:
    picker = Picker(
        metrics=metrics,
        clock=time.monotonic,
        draw=lambda: random.randrange(DRAW_LIMIT),
        policy=settings.policy,
        bounds=settings.bounds,
        limits=settings.hold,
        publish=feed.publish,
        wall=time.time,
    )
    picker.tenants.audit.write = settings.audit
    return picker


async def _until(stop: asyncio.Event, loops: Sequence[Loop]) -> None:
    running, stopping = asyncio.create_task(_all(loops)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)


async def _all(loops: Sequence[Loop]) -> None:
    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(loop())
