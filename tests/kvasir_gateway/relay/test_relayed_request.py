"""What the relay itself writes into a stream: how a request waits, and errors in the format of each API."""

import asyncio
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


@pytest.mark.parametrize("streams", [True, False])
async def test_only_a_stream_has_comments_while_it_waits(tmp_path, streams):
    waits = asyncio.Event()

    async def inner(_request):
        await waits.wait()
        return web.Response(body=b"{}", content_type="application/json")

    def place_of(_id):
        waits.set()
        return HeldPlace(place=1, of=1, phase="scale")

    application = web.Application()
    application.router.add_post("/v1/chat/completions", inner)
    runner = web.AppRunner(application)
    await runner.setup()
    await http_sites.UnixSite(runner, str(tmp_path / "inner.sock")).start()
    connector = aiohttp.UnixConnector(path=str(tmp_path / "inner.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:

        async def relay(request):
            return await RelayedRequest(request, b"{}", session=session, place_of=place_of).answer()

        outer = web.Application()
        outer.router.add_post("/v1/chat/completions", relay)
        async with TestServer(outer) as server, aiohttp.ClientSession() as client:
            headers = {names.HEADER_STREAM: "1"} if streams else {}
            async with client.post(server.make_url("/v1/chat/completions"), headers=headers) as response:
                text = await response.read()
    await runner.cleanup()
    assert text == (comment(HeldPlace(place=1, of=1, phase="scale")) + b"{}" if streams else b"{}")
    assert response.content_type == ("text/event-stream" if streams else "application/json")
