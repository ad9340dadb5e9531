"""Wires the picker: streams from Envoy, pages, loops. Called by the command, and by tests with sources of theirs."""

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from kvasir_api import names
from kvasir_gateway.choose import Policy
from kvasir_gateway.envoy.admin import Admin
from kvasir_gateway.picker.instruments import Instruments
from kvasir_gateway.picker.loops import Loops
from kvasir_gateway.picker.pages import Pages
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.sources import Objects, States
from kvasir_gateway.picker.streams import Streams

LOG = logging.getLogger(__name__)
DRAW_LIMIT = 1 << 32
STOP_GRACE_S = 0.25
"""A decision takes milliseconds; Envoy's log streams never end by themselves, so all of this is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the process. directory: shared with Envoy. address: where the state port listens."""

    directory: Path
    address: str
    state_port: int = names.PORT_GATEWAY_STATE
    max_body_bytes: int = 8 << 20
    reading_period_s: float = 0.5
    drain_settle_s: float = 5.0
    policy: Policy = field(default_factory=Policy)


async def run(settings: Settings, *, objects: Objects, states: States, stop: asyncio.Event) -> None:
    """Serve until told to stop, or until a loop fails, which is raised."""
    instruments = Instruments()
    picker = Picker(
        instruments=instruments,
        clock=time.monotonic,
        draw=lambda: random.randrange(DRAW_LIMIT),
        policy=settings.policy,
        max_body_bytes=settings.max_body_bytes,
    )
    admin = Admin(settings.directory)
    loops = Loops(
        picker=picker,
        objects=objects,
        states=states,
        admin=admin,
        directory=settings.directory,
        clock=time.monotonic,
        reading_period_s=settings.reading_period_s,
    )
    streams = Streams(picker, directory=settings.directory, max_body_bytes=settings.max_body_bytes)
    pages = Pages(
        picker=picker,
        instruments=instruments,
        health=loops.health,
        admin=admin,
        address=settings.address,
        port=settings.state_port,
        drain_settle_s=settings.drain_settle_s,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(admin.close)
        stack.push_async_callback(pages.stop)
        await pages.start()
        await streams.start()
        # Only now, since stopping removes the socket: where starting failed, it is another picker's.
        stack.push_async_callback(streams.stop, STOP_GRACE_S)
        LOG.info("picker at %s, its pages on %s:%d", settings.directory, settings.address, settings.state_port)
        await _until(stop, loops)


async def _until(stop: asyncio.Event, loops: Loops) -> None:
    running, stopping = asyncio.create_task(loops.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
