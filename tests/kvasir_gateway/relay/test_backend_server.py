"""The server for external backends on its socket, before a server over TLS."""

import asyncio
import contextlib
import json

import aiohttp
import pytest
from aiohttp import web

from fakes import tls_files
from fakes.gateway import until
from fakes.openai_server import OpenAiServer, with_status
from kvasir_api import names
from kvasir_gateway.envoy.bootstrap import BACKENDS_SOCKET
from kvasir_gateway.relay.backend_files import MOST_CONNECTIONS, BackendFiles
from kvasir_gateway.relay.backend_server import BackendServer
from kvasir_gateway.relay.kept_bytes import KeptBytes


@pytest.fixture
async def external(tmp_path):
    async with OpenAiServer("one", tls_files.authority(), tmp_path / "tls").serving() as server:
        yield server


@pytest.fixture
def files(external, tmp_path):
    directory = tmp_path / "backends"
    directory.mkdir()
    (directory / "one.json").write_text(json.dumps(external.file()))
    return directory


@pytest.fixture
def found(files):
    return BackendFiles(files)


@pytest.fixture
def kept():
    return KeptBytes(10_000)


@pytest.fixture
async def server(external, files, found, kept, tmp_path):
    (files / "stranger.json").write_text(json.dumps(external.file(ca=tls_files.authority("x").certificate.decode())))
    (files / "refused.json").write_text(json.dumps(external.file(url="https://127.0.0.1:1/v1")))
    made = BackendServer(tmp_path, found, kept)
    async with made.serving():
        yield made
    assert not (tmp_path / BACKENDS_SOCKET).exists()


async def post(tmp_path, name, body=b'{"model": "r"}', **more):
    headers = {
        names.HEADER_BACKEND: name,
        names.HEADER_BACKEND_MODEL: "m",
        names.HEADER_INFLIGHT_ID: "id-1",
        names.HEADER_SERVICE: f"default/r/{name}",
    } | more
    connector = aiohttp.UnixConnector(path=str(tmp_path / BACKENDS_SOCKET))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post("http://backends/v1/chat/completions", data=body, headers=headers) as response,
    ):
        return response.status, await response.read(), response.headers


async def test_what_a_request_took_is_reported_until_the_picker_has_it(server, tmp_path):
    status, body, _ = await post(tmp_path, "one")
    assert (status, json.loads(body)["model"]) == (200, "m")
    report = server.report()
    assert [grant.name for grant in report.backends] == ["one", "refused", "stranger"]
    (ended,) = report.ended
    assert (ended.id, ended.prompt_tokens, ended.cached_tokens, ended.completion_tokens) == ("id-1", 7, 5, 3)
    assert ended.first_token_s >= 0
    assert server.report() == report, "the picker may not have got it"
    server.reported(report)
    assert server.report().ended == ()


async def test_what_a_client_that_left_got_is_estimated(server, external, tmp_path):
    external.hold, body = asyncio.Event(), b'{"model": "r", "stream": true}'
    asking = asyncio.create_task(post(tmp_path, "one", body))
    await until(lambda: bool(external.seen), "the backend has it")
    connector = aiohttp.UnixConnector(path=str(tmp_path / BACKENDS_SOCKET))
    headers = {names.HEADER_BACKEND: "one", names.HEADER_INFLIGHT_ID: "left"}
    async with aiohttp.ClientSession(connector=connector) as session:
        url = "http://backends/v1/chat/completions"
        async with session.post(url, data=body, headers=headers) as response:
            assert (await response.content.readline()).startswith(b"data:")
    await until(lambda: bool(server.report().estimated), "the server sees its client leave")
    external.hold.set()
    await asking
    report = server.report()
    assert [(one.id, one.prompt_tokens, one.completion_tokens) for one in report.estimated] == [("left", 0, 1)]
    assert [one.id for one in report.ended] == ["id-1"]
    server.reported(report)
    assert server.report().estimated == ()


async def test_a_backend_that_has_as_many_as_it_takes_answers_at_once_and_rests_not(server, found, external, tmp_path):
    with contextlib.ExitStack() as stack:
        backend = found.get("one")
        for _ in range(MOST_CONNECTIONS):
            stack.enter_context(backend.session("default"))
        status, document, headers = await post(tmp_path, "one")
    assert (status, json.loads(document)["error"]["code"]) == (429, "backend_busy")
    assert headers[names.HEADER_BACKEND_FAILED] == "one"
    assert server.report().resting == ()
    assert external.seen == []


@pytest.mark.parametrize("name", ["stranger", "refused", "gone"])
async def test_one_that_cannot_be_reached_or_verified_is_marked_for_the_relay(server, external, tmp_path, name):
    status, body, headers = await post(tmp_path, name)
    assert (status, json.loads(body)["error"]["code"]) == (503, "backend_unavailable")
    assert headers[names.HEADER_BACKEND_FAILED] == name
    assert external.seen == []
    assert server.report().ended == ()


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"[]", "invalid_json"), (b"", "invalid_json"), (b"null", "invalid_json"), (b'{"stream":1}', None)],
)
async def test_a_body_that_is_no_request_is_the_clients_error(server, external, tmp_path, body, code):
    status, document, headers = await post(tmp_path, "one", body)
    assert (status, json.loads(document)["error"]["code"]) == (400, code)
    assert names.HEADER_BACKEND_FAILED not in headers
    assert external.seen == []


async def test_the_name_of_the_certificate_is_verified(files, external, tmp_path):
    url = f"https://localhost:{external.port}/v1"
    (files / "one.json").write_text(json.dumps(external.file(url=url)))
    async with BackendServer(tmp_path, BackendFiles(files), KeptBytes(10_000)).serving():
        status, _, _ = await post(tmp_path, "one")
    assert status == 503, "it is for 127.0.0.1"
    assert external.seen == []


@pytest.mark.parametrize(
    ("answer", "rests"),
    [
        (None, False),
        (with_status(400), False),
        (with_status(403), False),
        (with_status(404), False),
        (with_status(500), True),
        (with_status(429), True),
    ],
)
async def test_one_that_failed_rests_under_the_route_that_used_it(server, external, tmp_path, answer, rests):
    external.answer = answer
    await post(tmp_path, "one")
    assert server.report().resting == (("default/r/one",) if rests else ())
    external.answer = None
    assert (await post(tmp_path, "one"))[0] == 200
    assert server.report().resting == ()


async def test_one_that_cannot_be_reached_rests(server, tmp_path):
    await post(tmp_path, "refused")
    assert server.report().resting == ("default/r/refused",)


async def test_an_answer_of_another_type_rests_nothing(server, external, tmp_path):
    async def html(_request):
        return web.Response(text="<html>", content_type="text/html")

    external.answer = html
    assert (await post(tmp_path, "one"))[0] == 503
    assert server.report().resting == ()


async def test_a_file_that_changes_while_a_body_arrives_breaks_nothing(files, found, external, tmp_path):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def body():
        yield b'{"model": '
        begun.set()
        await go_on.wait()
        yield b'"r"}'

    async with BackendServer(tmp_path, found, KeptBytes(1 << 20)).serving():
        asking = asyncio.create_task(post(tmp_path, "one", body()))
        await begun.wait()
        first = found.get("one")
        await until(lambda: not first.idle, "the server has the head")
        (files / "one.json").write_text(json.dumps(external.file(key="another")))
        for _ in range(2):
            await found.read()
        assert found.get("one") is not first
        go_on.set()
        assert (await asking)[0] == 200
    assert external.seen[0][1]["authorization"] == "Bearer key-of-one"


async def test_bodies_on_their_way_have_the_bound_of_all_that_is_kept(server, external, kept, tmp_path):
    external.hold = asyncio.Event()
    body = json.dumps({"model": "r", "stream": True, "x": "x" * 6000}).encode()
    first = asyncio.create_task(post(tmp_path, "one", body))
    await until(lambda: bool(external.seen), "the backend has one")
    status, answer, headers = await post(tmp_path, "one", body)
    assert (status, json.loads(answer)["error"]["code"]) == (429, "overloaded")
    assert headers[names.HEADER_BACKEND_FAILED] == "one", "the next fallback is tried"
    with kept.share() as share:
        assert not share.can_have(5000), "the relay keeps no more beside it"
    external.hold.set()
    assert (await first)[0] == 200
    assert (await post(tmp_path, "one", body))[0] == 200
    assert len(external.seen) == 2
