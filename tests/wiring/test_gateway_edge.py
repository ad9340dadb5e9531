"""The gateway's edge with the real Envoy: timeouts, service without a picker, TLS, browsers, headers of clients."""

import asyncio
import json
import os
import ssl
from pathlib import PurePosixPath

import aiohttp
import pytest

from fakes import tls_files
from fakes.gateway import gateway, until
from fakes.stub_runtime import stub_runtimes
from kvasir_gateway.envoy.bootstrap import REQUESTS_SOCKET
from kvasir_gateway.hold_queue import HoldLimits
from kvasir_gateway.picker.grpc_streams import GrpcStreamServer

pytestmark = [pytest.mark.asyncio, pytest.mark.xdist_group("gateway-edge")]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def pods():
    async with stub_runtimes(2) as stubs:
        yield stubs


def error_of(body):
    return json.loads(body)["error"]


async def idle(front, service):
    return await front.inflight(service) == 0


async def test_an_answer_has_a_total_timeout_with_the_time_it_was_held(pods):
    async with gateway(timeout_s=2.0, hold=HoldLimits(max_wait_s=300)) as front:
        front.objects.serve("slow", pods[0])
        front.objects.serve("never")
        await until(lambda: front.routes("slow"), "slow")
        pods[0].hold_headers, before = asyncio.Event(), len(pods[0].seen)

        async def times_out():
            status, body, headers = await front.post("slow")
            assert (status, error_of(body)["code"], headers["x-should-retry"]) == (504, "timeout", "false")
            return len(pods[0].seen) > before  # not so where the pod is late

        async def breaks():
            """Whether the stream does, which begins before its time is over where the pod is not late."""
            try:
                assert (await front.post("slow", stream=True))[0] == 504
            except aiohttp.ClientError:
                return True
            return False

        await until(times_out, "the pod gets a request")
        pods[0].hold_headers, pods[0].hold_tokens = None, asyncio.Event()
        await until(breaks, "a stream has begun")
        status, body, _ = await front.post("never")
        assert (status, error_of(body)["code"]) == (503, "no_ready_replica")
        await until(lambda: pods[0].aborted >= 2 and not pods[0].open, "the pod is told")
        await until(lambda: idle(front, "slow"), "no request in flight")


async def test_a_silent_stream_ends_and_an_answer_in_one_piece_goes_on(pods):
    async with gateway(idle_timeout_s=1) as front:
        front.objects.serve("silent", pods[0])
        await until(lambda: front.routes("silent"), "silent")
        pods[0].hold_headers = held = asyncio.Event()
        whole = asyncio.create_task(front.post("silent"))
        await until(lambda: pods[0].open == 1, "the answer in one piece is awaited")
        status, body, _ = await front.post("silent", stream=True)
        assert (status, error_of(body)["code"]) == (504, "timeout")
        held.set()
        assert (await whole)[:2] == (200, pods[0].whole())


async def test_without_a_picker_requests_are_refused_by_default(pods):
    async with gateway() as front:
        front.objects.serve("a", pods[0])
        await until(lambda: front.routes("a"), "a")
        await front.stop_picker()
        status, body, _ = await front.post("a")
        assert (status, error_of(body)["code"]) == (503, "gateway_unavailable")
        front.start_picker()
        await until(lambda: front.routes("a"), "a again")


@pytest.mark.parametrize("serves", [False, True], ids=["refuse", "least-request"])
async def test_a_new_picker_that_has_not_listed_services_yet_is_as_none(pods, serves):
    """It does not call their models unknown, and no list of models is empty."""
    async with gateway(serves_without_picker=serves) as front:
        front.objects.serve("a", pods[0])
        await until(lambda: front.routes("a"), "a")
        await front.stop_picker()
        front.objects.synced.clear()
        front.start_picker()

        async def is_listed_for():
            code, text = await front.page("/readyz")
            return (code, text) == (503, "services and pods are not listed yet\n")

        await until(is_listed_for, "the next picker waits for its lists")
        status, body, _ = await front.post("a")
        assert (status, body) == (200, pods[0].whole()) if serves else error_of(body)["code"] == "gateway_unavailable"
        async with front.client.get(f"{front.url}/v1/models") as response:
            assert response.status == 503
        front.objects.synced.set()

        async def lists():
            async with front.client.get(f"{front.url}/v1/models") as response:
                return response.status == 200 and (await response.json())["data"]

        await until(lists, "the picker answers")


class Silent:
    """Answers no request."""

    def received(self, message):
        assert message

    def left(self):
        pass


@pytest.mark.parametrize("serves", [False, True], ids=["refuse", "least-request"])
async def test_a_picker_that_is_silent_is_as_none(pods, serves):
    async with gateway(serves_without_picker=serves, message_timeout_s=1) as front:
        front.objects.serve("a", pods[0])
        await until(lambda: front.routes("a"), "a")
        await front.stop_picker()
        silent = GrpcStreamServer(front.directory / REQUESTS_SOCKET, lambda _: Silent(), most_bytes=1 << 20)
        await silent.start()
        status, body, _ = await front.post("a")
        assert (status, body) == (200, pods[0].whole()) if serves else error_of(body)["code"] == "gateway_unavailable"
        await silent.stop(0.0)


async def test_without_a_picker_requests_go_to_ready_pods_of_their_model_by_policy(pods):
    one, two = pods
    async with gateway(serves_without_picker=True) as front:
        front.objects.serve("a", one, model="org/a")
        front.objects.serve("b", two)
        await until(lambda: front.routes("org/a"), "a")
        await until(lambda: front.routes("b"), "b")
        await front.stop_picker()
        forged = {"x-kvasir-cluster": "default.b", "x-gateway-destination-endpoint": f"127.0.0.1:{two.http_port}"}

        async def reached():
            return (await front.post("org/a"))[:2] == (200, one.whole())

        await until(reached, "Envoy has the routes of models")
        assert (await front.post("org/a", headers=forged))[1] == one.whole()
        assert (await front.post("default/a", stream=True))[1] == one.whole()
        assert (await front.post("b", messages=[{"role": "user", "content": "é" * 9000}]))[1] == two.whole()
        ollama = {"model": "b:latest"}
        async with front.client.post(f"{front.url}/api/chat", data=json.dumps(ollama)) as response:
            assert (response.status, await response.read()) == (200, two.whole())
        status, body, _ = await front.post("unknown")
        assert (status, error_of(body)["code"]) == (503, "upstream_unavailable")
        for method, path in (("GET", "/v1/models"), ("POST", "/metrics"), ("POST", "/drain")):
            async with front.client.request(method, front.url + path, json={"model": "b"}) as response:
                assert response.status == 503
        seen = len(one.seen)
        front.start_picker()
        await until(lambda: front.routes("org/a"), "the picker chooses again")
        assert len(one.seen) == seen + 1


async def test_browsers_of_listed_origins_may_send_requests(pods):
    async with gateway(cors_origins=("https://chat.example.com",)) as front:
        front.objects.serve("a", pods[0])
        await until(lambda: front.routes("a"), "a")
        asks = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,x-stainless-os",
        }
        url = f"{front.url}/v1/chat/completions"
        async with front.client.options(url, headers={"origin": "https://chat.example.com", **asks}) as response:
            assert response.status == 200
            assert response.headers["access-control-allow-origin"] == "https://chat.example.com"
            assert response.headers["access-control-allow-headers"] == "authorization, *"
            assert "POST" in response.headers["access-control-allow-methods"]
        async with front.client.options(url, headers={"origin": "https://evil.example.com", **asks}) as response:
            assert response.status == 405
            assert "access-control-allow-origin" not in response.headers
        for model, status in (("a", 200), ("unknown", 404)):
            found = await front.post(model, headers={"origin": "https://chat.example.com"})
            assert (found[0], found[2]["access-control-allow-origin"]) == (status, "https://chat.example.com")
        _, _, headers = await front.post("a", headers={"origin": "https://evil.example.com"})
        assert "access-control-allow-origin" not in headers


async def shown(port: int, trusted: ssl.SSLContext) -> bytes:
    """The certificate that a new connection sees."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    del reader
    return found


async def test_a_certificate_is_replaced_without_a_lost_stream(pods, tmp_path):
    authority = tls_files.authority()
    directory = tmp_path / "tls"
    directory.mkdir()
    first = tls_files.issued(authority, directory)
    trusted = ssl.create_default_context(cadata=authority.certificate.decode())
    async with gateway(tls_directory=PurePosixPath(directory)) as front:
        front.objects.serve("a", pods[0])
        await until(lambda: front.has_ready("a", 1), "a")
        url = f"https://127.0.0.1:{front.port}/v1/chat/completions"

        async def routes():
            async with front.client.post(url, json={"model": "a"}, ssl=trusted) as response:
                return response.status == 200

        await until(routes, "a by HTTPS")
        with pytest.raises(aiohttp.ClientError):
            await front.post("a")
        assert await shown(front.port, trusted) == tls_files.binary(first)
        pods[0].hold_tokens = asyncio.Event()
        async with front.client.post(url, json={"model": "a", "stream": True}, ssl=trusted) as stream:
            begun = await stream.content.readexactly(len(pods[0].piece(0)))
            second = tls_files.issued(authority, directory)

            async def replaced():
                return await shown(front.port, trusted) == tls_files.binary(second)

            await until(replaced, "new connections see the new certificate")
            os.truncate(directory / "tls.key", 10)  # written badly: Envoy goes on with what it has
            pods[0].hold_tokens.set()
            assert begun + await stream.read() == pods[0].whole()
        assert await shown(front.port, trusted) == tls_files.binary(second)


async def test_headers_of_a_client_do_not_change_how_envoy_treats_its_request(pods):
    async with gateway() as front:
        front.objects.serve("a", pods[0])
        await until(lambda: front.routes("a"), "a")
        pods[0].failure = (500, b'{"error": {"message": "mine"}}')
        pods[0].seen.clear()
        retries = {"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "5", "x-envoy-upstream-rq-timeout-ms": "1"}
        status, body, _ = await front.post("a", headers={**retries, "x-kvasir-stream": "1"})
        assert (status, body) == pods[0].failure
        (request,) = pods[0].seen
        assert "x-kvasir-stream" not in request.headers
        assert not retries.keys() & {name.lower() for name in request.headers}


@pytest.mark.parametrize("how", [{}, {"x-kvasir-resume": "1"}], ids=["straight", "through the relay"])
async def test_ids_and_traces_of_a_client_reach_the_pod_and_ids_come_back(pods, how):
    async with gateway(relay=True) as front:
        front.objects.serve("a", pods[0])
        await until(lambda: front.routes("a"), "a")
        _, _, headers = await front.post(
            "a", stream=True, headers={"x-request-id": "mine", "traceparent": TRACE, **how}
        )
        seen = pods[0].seen[-1].headers
        assert (headers["x-request-id"], seen["x-request-id"], seen["traceparent"]) == ("mine", "mine", TRACE)
        _, _, headers = await front.post("a", headers=how)
        assert headers["x-request-id"] == pods[0].seen[-1].headers["x-request-id"] != ""

        async def logged():
            log = (front.directory / "envoy.log").read_text()
            return '"request_id":"mine"' in log

        await until(logged, "the id is in Envoy's log")


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_of_http_1_0_gets_its_answer_to_the_end_of_the_connection(pods, streams):
    """As nginx before the gateway, with its defaults; a client of its own age names no host."""
    async with gateway(relay=True) as front:
        front.objects.serve("a", pods[0])
        await until(lambda: front.routes("a"), "a")
        body = json.dumps({"model": "a", "stream": streams}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert (head.split()[1], answer) == (b"200", pods[0].whole())
