"""The picker's process: what it leaves alone when it cannot start."""

import asyncio
import socket

import pytest

from fakes.gateway import FakeObjects
from kvasir_gateway.envoy.bootstrap import PICKER_SOCKET
from kvasir_gateway.picker import app


class NoStates:
    async def states(self, _targets, *, deadline_s):
        assert deadline_s > 0
        return {}


async def test_a_picker_that_finds_its_port_taken_leaves_the_others_socket(tmp_path):
    (tmp_path / PICKER_SOCKET).touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = app.PickerSettings(directory=tmp_path, address="127.0.0.1", state_port=other.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            await app.run(settings, objects=FakeObjects(), states=NoStates(), stop=asyncio.Event())
    assert (tmp_path / PICKER_SOCKET).exists()
