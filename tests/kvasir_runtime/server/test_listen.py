"""The server of a port as the process starts it, over real connections: who a call seems to come from."""

import asyncio
import contextlib
import socket
import ssl
import struct

import pytest

from fakes import tls_files
from kvasir_runtime.server import listen
from kvasir_runtime.server.http_limits import BoundedFlow, BoundedProtocol
from kvasir_runtime.server.json_response import json_response
from kvasir_runtime.server.ops_guard import OpsGuard, ops_keys

LIMIT_S = 60
LINGER_0 = struct.pack("ii", 1, 0)


class Served:
    """The ops port's guard at an address of loopback. calls: client and status of what was handled."""

    def __init__(self, path=""):
        self.calls, self.handled, self.keys = [], asyncio.Event(), ops_keys(str(path))
        self.keys.load()
        self.guard = OpsGuard(json_response({}), keys=self.keys, instance="pod")

    async def __call__(self, scope, receive, send):
        async def noted(message):
            if message["type"] == "http.response.start":
                self.calls.append((scope["client"], message["status"]))
            await send(message)

        await self.guard(scope, receive, noted)
        self.handled.set()

    @contextlib.asynccontextmanager
    async def serving(self, host="127.0.0.1", *, forwarded=False, tls=None):
        """Yields the address."""
        with socket.create_server((host, 0)) as listener:
            listener.setblocking(False)
            server = listen.server(self, forwarded=forwarded, tls=tls)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield listener.getsockname()
            finally:
                server.should_exit = server.force_exit = True
                await task


def post(*fields, length=0, body=""):
    return "\r\n".join(["POST /drain HTTP/1.1", "Host: x", f"Content-Length: {length}", *fields, "", body]).encode()


async def answer(address, request):
    """Status, once the server has closed the connection or answered."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        async with asyncio.timeout(LIMIT_S):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("a token of the file\n")
    return path


@pytest.mark.parametrize("keys", [True, False])
async def test_a_call_of_a_connection_that_was_reset_is_refused(key_file, keys):
    served = Served(key_file if keys else "")
    async with served.serving() as address:
        # Without a turn of the loop between, so that the server accepts a connection that is reset already.
        with socket.create_connection(address) as client:
            client.sendall(post())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
        async with asyncio.timeout(LIMIT_S):
            await served.handled.wait()
    assert served.calls == [(None, 401 if keys else 403)]


async def test_a_caller_without_a_token_is_refused_while_its_body_is_missing(key_file):
    served = Served(key_file)
    async with served.serving("127.0.0.2") as address:
        assert await answer(address, post(length=10, body="abc")) == 401


async def test_nothing_that_a_caller_sends_makes_it_local(key_file, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    served = Served(key_file)
    async with served.serving("127.0.0.2") as address:
        assert await answer(address, post("X-Forwarded-For: 127.0.0.2")) == 401
        assert await answer(address, post("X-Forwarded-For: 127.0.0.2", "Authorization: Bearer a token of the file"))
    assert [(client[0], status) for client, status in served.calls] == [("127.0.0.1", 401), ("127.0.0.1", 200)]


async def test_a_proxy_on_loopback_may_name_the_client_where_that_decides_no_rights():
    served = Served()
    async with served.serving(forwarded=True) as address:
        await answer(address, post("X-Forwarded-For: 10.0.0.1"))
    assert served.calls == [(("10.0.0.1", 0), 403)]


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
async def test_a_client_that_does_not_end_its_handshake_is_cut_off_as_one_without_a_head(tmp_path, monkeypatch, sent):
    ca = tls_files.authority()
    tls_files.issued(ca, tmp_path)
    monkeypatch.setattr(BoundedProtocol, "head_s", 0.2)
    served = Served()
    async with served.serving(tls=tls_files.server_side(tmp_path)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        async with asyncio.timeout(LIMIT_S / 2):  # half of asyncio's own limit
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        monkeypatch.undo()
    async with served.serving(tls=tls_files.server_side(tmp_path)) as address:
        trusted = ssl.create_default_context(cadata=ca.certificate.decode())
        reader, writer = await asyncio.open_connection(*address, ssl=trusted)
        writer.write(post())
        async with asyncio.timeout(LIMIT_S):
            assert b"200" in await reader.readline()
            writer.close()
            with contextlib.suppress(OSError):  # of what was not read
                await writer.wait_closed()


class Endless(Served):
    """Sends until that raises, which is kept as `error`."""

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        except OSError as error:
            self.error = error
            self.handled.set()
            raise


async def test_a_response_to_a_client_that_reads_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(BoundedFlow, "write_s", 0.05)
    served, lost = Endless(), asyncio.Event()
    monkeypatch.setattr(BoundedProtocol, "connection_lost", lambda protocol, exc: lost.set())
    async with served.serving() as address:
        _, writer = await asyncio.open_connection(*address, limit=1)
        writer.write(post())
        async with asyncio.timeout(LIMIT_S):
            await served.handled.wait()
            await lost.wait()  # and is not held until the client reads
        writer.close()
    assert isinstance(served.error, TimeoutError)
