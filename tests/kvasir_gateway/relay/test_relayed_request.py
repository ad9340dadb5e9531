"""What the relay itself writes into a stream: how a request waits, and errors in the format of each API."""

import asyncio
import contextlib
import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvasir_api import names
from kvasir_gateway.held_places import HeldPlace
from kvasir_gateway.relay.relayed_request import RelayedRequest, comment, error_event
from kvasir_kube import http_sites

ERROR = b'{"error": {"message": "m", "code": "c", "param": null}}'


def test_a_comment_says_how_a_request_waits():
    place = HeldPlace(place=3, of=12, phase="weights", eta_s=12.345)
    assert comment(place) == b': kvasir-held {"place":3,"of":12,"phase":"weights","eta_s":12.3}\n\n'
    assert comment(HeldPlace(place=1, of=1, phase="scale")) == b': kvasir-held {"place":1,"of":1,"phase":"scale"}\n\n'


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", b"data: " + ERROR + b"\n\n"),
        ("/v1/completions", b"data: " + ERROR + b"\n\n"),
        ("/v1/messages", b"event: error\ndata: " + ERROR + b"\n\n"),
        ("/v1/responses", b'event: error\ndata: {"type":"error","code":"c","message":"m","param":null}\n\n'),
    ],
)
def test_an_error_is_an_event_of_the_api(path, event):
    assert error_event(ERROR, path) == event


def test_what_is_no_json_is_one_line_all_the_same():
    event = error_event(b"<html>\n\ndata: x</html>", "/v1/chat/completions")
    assert event.count(b"\n") == 2
    assert json.loads(error_event(b"<html>", "/v1/responses").split(b"data: ")[1])["type"] == "error"


@contextlib.asynccontextmanager
async def relayed(tmp_path, inner, **options):
    """A client's session with a relay before one replica. options: of RelayedRequest."""
    application = web.Application()
    application.router.add_post("/v1/chat/completions", inner)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await http_sites.UnixSite(runner, str(tmp_path / "inner.sock")).start()
    connector = aiohttp.UnixConnector(path=str(tmp_path / "inner.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:

        async def relay(request):
            return await RelayedRequest(request, b"{}", session=session, **options).answer()

        outer = web.Application()
        outer.router.add_post("/v1/chat/completions", relay)
        async with TestServer(outer) as server, aiohttp.ClientSession(server.make_url("/")) as client:
            yield client
    await runner.cleanup()


@pytest.mark.parametrize("streams", [True, False])
async def test_only_a_stream_has_comments_while_it_waits(tmp_path, streams):
    waits = asyncio.Event()

    async def inner(_request):
        await waits.wait()
        return web.Response(body=b"{}", content_type="application/json")

    def place_of(_id):
        waits.set()
        return HeldPlace(place=1, of=1, phase="scale")

    headers = {names.HEADER_STREAM: "1"} if streams else {}
    async with (
        relayed(tmp_path, inner, place_of=place_of) as client,
        client.post("/v1/chat/completions", headers=headers) as response,
    ):
        text = await response.read()
    assert text == (comment(HeldPlace(place=1, of=1, phase="scale")) + b"{}" if streams else b"{}")
    assert response.content_type == ("text/event-stream" if streams else "application/json")


@pytest.mark.parametrize(("most", "tries"), [(1000, 1), (10_000, 4)])
async def test_a_stream_for_which_there_is_no_more_room_is_passed_on_and_not_resumed(tmp_path, most, tries):
    """most: bytes that may be kept of it, its body among them. Four replicas may fail under one that is resumed."""
    seen, cut = [], asyncio.Event()
    text = b"data: " + b"x" * 4000
    passes_on = tries == 1
    if not passes_on:  # the client has nothing before a token stands for it
        cut.set()

    async def inner(request):
        seen.append(request)
        response = web.StreamResponse(headers={names.HEADER_CONTINUATION: "pieces"})
        await response.prepare(request)
        await response.write(text)
        await cut.wait()
        request.transport.abort()
        return response

    async with (
        relayed(tmp_path, inner, place_of=lambda _: None, may_keep=lambda n: n <= most) as client,
        client.post("/v1/chat/completions", headers={names.HEADER_STREAM: "1", names.HEADER_RESUME: "1"}) as response,
    ):
        if passes_on:
            assert await response.content.readexactly(len(text)) == text
            cut.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert len(seen) == tries
