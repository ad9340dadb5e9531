"""Wires the picker: ext-proc server, state server, loops. Called by the command and by tests."""

import asyncio
import contextlib
import logging
import random
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy.admin import EnvoyAdmin
from kvasir_gateway.picker.drain_server import DrainServer
from kvasir_gateway.picker.ext_proc_server import ExtProcServer
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.sources import ObjectSource, StateSource
from kvasir_gateway.picker.state_server import StateServer
from kvasir_gateway.picker.sync_loops import SyncLoops

LOG = logging.getLogger(__name__)
DRAW_LIMIT = 1 << 32
STOP_GRACE_S = 0.25
"""A decision takes milliseconds; Envoy's log streams never end by themselves, so the stop always takes this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerSettings:
    """Settings of the process. directory: shared with Envoy."""

    directory: Path
    max_body_bytes: int = 8 << 20
    reading_period_s: float = 0.5
    drain_settle_s: float = 5.0
    policy: ChoicePolicy = field(default_factory=ChoicePolicy)


async def run(
    settings: PickerSettings,
    *,
    state_port: socket.socket,
    objects: ObjectSource,
    states: StateSource,
    stop: asyncio.Event,
) -> None:
    """Serve until stop is set, or until a loop fails, which is raised. state_port: listens already."""
    metrics = GatewayMetrics()
    picker = Picker(
        metrics=metrics,
        clock=time.monotonic,
        draw=lambda: random.randrange(DRAW_LIMIT),
        policy=settings.policy,
        max_body_bytes=settings.max_body_bytes,
    )
    admin = EnvoyAdmin(settings.directory)
    loops = SyncLoops(
        picker=picker,
        objects=objects,
        states=states,
        admin=admin,
        directory=settings.directory,
        clock=time.monotonic,
        reading_period_s=settings.reading_period_s,
    )
    ext_proc = ExtProcServer(picker, directory=settings.directory, max_body_bytes=settings.max_body_bytes)
    state_server = StateServer(
        picker=picker,
        metrics=metrics,
        health=loops.health,
        listening=state_port,
    )
    drain_server = DrainServer(
        picker=picker,
        health=loops.health,
        admin=admin,
        directory=settings.directory,
        settle_s=settings.drain_settle_s,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(state_port.close)
        stack.push_async_callback(admin.close)
        stack.push_async_callback(state_server.stop)
        await state_server.start()
        await ext_proc.start()
        # Only now, since stop removes the socket: where start failed, the socket is another picker's.
        stack.push_async_callback(ext_proc.stop, STOP_GRACE_S)
        await drain_server.start()
        stack.push_async_callback(drain_server.stop)
        LOG.info("picker at %s, /state on %s:%d", settings.directory, *state_port.getsockname()[:2])
        await _until(stop, loops)


async def _until(stop: asyncio.Event, loops: SyncLoops) -> None:
    running, stopping = asyncio.create_task(loops.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
