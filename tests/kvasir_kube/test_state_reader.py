"""Readings of pods that answer, are slow, answer nonsense, or too much."""

import asyncio

import aiohttp
import pytest

from fakes.stub_runtime import StubRuntime
from kvasir_kube.state_reader import MAX_BYTES, StateReader, url


@pytest.fixture
async def pods():
    """Runtime pods by what is wrong with their /state."""
    stubs = {name: await StubRuntime(name).start() for name in ("good", "future", "slow", "nonsense", "huge")}
    stubs["good"].set_state(running=3)
    stubs["future"].raw_state = b'{"schema": 9, "running": 4, "from_the_future": {"x": 1}}'
    stubs["slow"].hold_state = asyncio.Event()
    stubs["nonsense"].raw_state = b'{"running": "many"}'
    stubs["huge"].raw_state = b" " * (MAX_BYTES + 1) + b"{}"
    yield stubs
    stubs["slow"].hold_state.set()
    await asyncio.gather(*(stub.stop() for stub in stubs.values()))


async def test_a_pod_without_a_sound_answer_is_no_reading(pods):
    targets = {name: f"http://127.0.0.1:{stub.ops_port}" for name, stub in pods.items()}
    targets["absent"] = f"{targets['good']}/absent"
    targets["refused"] = "http://127.0.0.1:1"
    async with aiohttp.ClientSession() as session:
        readings = await StateReader(session).states(targets, deadline_s=1.5)
    assert {name: reading.running for name, reading in readings.items()} == {"good": 3, "future": 4}


async def test_drain_is_asked_for_and_taken_back(pods):
    async with aiohttp.ClientSession() as session:
        reader = StateReader(session)
        agreed = [await reader.drain(f"http://127.0.0.1:{pods['good'].ops_port}", on=on) for on in (True, False)]
        refused = await reader.drain("http://127.0.0.1:1", on=True)
    assert (agreed, refused, pods["good"].drains) == ([True, True], False, ["POST", "DELETE"])


def test_addresses_of_version_6_get_brackets():
    assert url("fd00::1", 8001, "/state") == "http://[fd00::1]:8001/state"
