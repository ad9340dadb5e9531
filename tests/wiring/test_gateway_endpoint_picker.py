"""The endpoint picker for proxies of others: a second, foreign Envoy with an InferencePool's pods, and our picker."""

import asyncio
import datetime as dt
import json

import grpc
import grpc.aio
import pytest
from openai import AsyncOpenAI

from fakes.gateway import gateway, grant, until
from fakes.pool_proxy import pool_proxy
from fakes.readings import has_read
from fakes.stub_runtime import stub_runtimes
from kvasir_gateway.hold_queue import HoldLimits
from kvasir_gateway.picker.endpoint_picker_server import DUPLEX, EndpointPickerSettings
from kvasir_gateway.picker.ext_proc_messages import PROCESS
from kvasir_gateway.proto import ext_proc_pb2 as proc
from kvasir_kube import certificates
from kvasir_local import addresses

pytestmark = [pytest.mark.asyncio, pytest.mark.xdist_group("gateway-endpoint-picker")]


@pytest.fixture
async def pods():
    async with stub_runtimes(3) as stubs:
        yield stubs


def settings(**fields):
    (port,) = addresses.free_ports(1)
    return EndpointPickerSettings(address="127.0.0.1", port=port, **fields)


async def asked(front, url, model, **fields):
    headers = fields.pop("headers", {})
    where = f"{url}/v1/chat/completions"
    async with front.client.post(where, json={"model": model, **fields}, headers=headers) as response:
        return response.status, await response.read(), response.headers


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_pool_of_others_gets_the_endpoints_that_the_picker_chooses(pods, mode):
    busy, idle, elsewhere = pods
    chosen = settings()
    async with gateway(endpoint_picker=chosen, max_body_bytes=400_000) as front:
        busy.set_state(waiting=9, waiting_uncached_tokens=50_000)  # before the picker knows it
        front.objects.serve("s", busy, idle)
        front.objects.serve("other", elsewhere)
        front.objects.route("routed", rules=[{"targets": [{"service": "s"}]}])
        await until(lambda: front.routes("s"), "s")
        ports = [pod.http_port for pod in (busy, idle)]
        async with pool_proxy(ports, picker=chosen.port, mode=mode, subset=True) as url:

            async def goes_to_the_idle_one():
                try:
                    status, body, _ = await asked(front, url, "s")
                except OSError:
                    return False
                return (status, body) == (200, idle.whole())

            # One answer of the idle one may be chance.
            await until(lambda: has_read(front, "s", 2), "a reading of both pods")
            await until(goes_to_the_idle_one, "the proxy")
            assert [(await asked(front, url, "s"))[1] for _ in range(5)] == [idle.whole()] * 5
            long = [{"role": "user", "content": "é" * 50_000}]
            forged = {"x-kvasir-relayed": "x", "x-envoy-original-url": "http://a/b", "x-kvasir-refer": "http://a/b"}
            _, _, headers = await asked(front, url, "s", messages=long, headers=forged)
            assert headers["x-kvasir-service"] == "default/s"
            assert "x-kvasir-refer" not in idle.seen[-1].headers
            assert json.loads(await idle.seen[-1].read()) == {"model": "s", "messages": long}
            assert (await asked(front, url, "default/routed"))[0] == 200
            assert json.loads(await idle.seen[-1].read()) == {"model": "default/s"}, "as the route's service knows it"
            status, body, headers = await asked(front, url, "other")
            assert (status, json.loads(body)["error"]["code"]) == (503, "no_ready_replica"), "it is not of this pool"
            assert 2 <= int(headers["retry-after"]) <= 6
            assert (await asked(front, url, "unknown"))[0] == 404
            too_long = [{"role": "user", "content": "x" * 500_000}]
            assert (await asked(front, url, "s", messages=too_long))[0] == 413
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
                assert "s" in {model.id async for model in client.models.list()}


async def test_a_request_of_a_pool_counts_until_its_answer_has_ended(pods):
    pod = pods[0]
    chosen = settings()
    async with gateway(endpoint_picker=chosen) as front:
        front.objects.serve("s", pod)
        await until(lambda: front.routes("s"), "s")
        async with pool_proxy([pod.http_port], picker=chosen.port, mode="FULL_DUPLEX_STREAMED") as url:

            async def serves():
                try:
                    return (await asked(front, url, "s"))[0] == 200
                except OSError:
                    return False

            await until(serves, "the proxy")
            pod.hold_tokens = asyncio.Event()
            running = asyncio.create_task(asked(front, url, "s", stream=True))
            leaves = asyncio.create_task(asked(front, url, "s", stream=True))

            async def count(number):
                return await front.inflight("s") == number

            await until(lambda: count(2), "both count")
            leaves.cancel()
            await until(lambda: count(1), "one client has left")
            pod.hold_tokens.set()
            assert (await running)[:2] == (200, pod.whole())
            await until(lambda: count(0), "the other one has its answer")


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_tenants_requests_of_a_pool_have_limits_and_lines_too(pods, mode):
    pod, chosen = pods[0], settings()
    async with gateway(endpoint_picker=chosen) as front:
        front.objects.serve("s", pod)
        await until(lambda: front.routes("s"), "s")
        async with pool_proxy([pod.http_port], picker=chosen.port, mode=mode) as url:

            async def status(key):
                try:
                    return (await asked(front, url, "s", headers={"authorization": f"Bearer {key}"}))[0]
                except OSError:
                    return 0

            async def answers(key, wanted):
                return await status(key) == wanted

            await until(lambda: answers("none", 200), "the proxy")
            await front.set_tenants(grant("team", "k", requests_per_minute=1))
            await until(lambda: answers("none", 401), "a key is needed")
            assert (await status("k"), await status("k")) == (200, 429)

            def audited():
                found = [line for line in map(json.loads, front.audit_lines) if line["tenant"] == "team"]
                return sorted(found, key=lambda line: line["status"])

            await until(lambda: len(audited()) == 2, "both have their lines")
            lines = audited()
            assert [(line["status"], line["outcome"]) for line in lines] == [(200, "ok"), (429, "refused")]
            assert (lines[0]["prompt_tokens"], lines[0]["completion_tokens"]) == (pod.prompt_tokens, pod.tokens)


async def test_the_port_may_be_encrypted_and_says_that_it_serves(pods, tmp_path):
    authority = certificates.authority("test", now=dt.datetime.now(dt.UTC))
    pair = certificates.leaf(authority, user="picker", addresses=("127.0.0.1",), now=dt.datetime.now(dt.UTC))
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority.certificate)):
        (tmp_path / name).write_bytes(content)
    chosen = settings(tls_directory=tmp_path)
    async with gateway(endpoint_picker=chosen) as front:
        front.objects.serve("s", pods[0])
        await until(lambda: front.routes("s"), "s")
        ca = tmp_path / "ca.crt"
        async with pool_proxy([pods[0].http_port], picker=chosen.port, mode="BUFFERED", tls_ca=ca) as url:

            async def serves():
                try:
                    return (await asked(front, url, "s"))[0] == 200
                except OSError:
                    return False

            await until(serves, "the proxy by TLS")
        credentials = grpc.ssl_channel_credentials(authority.certificate)
        async with grpc.aio.secure_channel(f"127.0.0.1:{chosen.port}", credentials) as channel:
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"


async def test_bodies_that_other_proxies_send_are_bounded_together_and_kept_until_the_choice(pods):
    chosen = settings()
    hold = HoldLimits(max_wait_s=0, max_bytes=500_000)
    async with gateway(endpoint_picker=chosen, hold=hold, max_body_bytes=400_000) as front:
        front.objects.serve("s", pods[0])
        await until(lambda: front.routes("s"), "s")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{chosen.port}") as channel:
            process = channel.stream_stream(
                f"/{PROCESS}/Process",
                request_serializer=proc.ProcessingRequest.SerializeToString,
                response_deserializer=proc.ProcessingResponse.FromString,
            )

            async def sent(body, *, is_whole):
                """A request that is on its way, with so much of its body."""
                stream, head = process(), proc.ProcessingRequest()
                for name, value in ((":method", "POST"), (":path", "/v1/chat/completions")):
                    head.request_headers.headers.headers.add(key=name, raw_value=value.encode())
                head.protocol_config.request_body_mode = DUPLEX
                await stream.write(head)
                piece = proc.HttpBody(body=body, end_of_stream=is_whole)
                await stream.write(proc.ProcessingRequest(request_body=piece))
                return stream

            whole = json.dumps({"model": "s", "prompt": "x" * 300_000}).encode()
            running = []
            for _ in range(3):
                stream = await sent(whole, is_whole=True)
                running.append(stream)
                answer = await stream.read()
                assert answer.WhichOneof("response") == "request_headers", "no other's body is kept"
                removed = answer.request_headers.response.header_mutation.remove_headers
                named = ["x-kvasir-kv-peer", "x-kvasir-refer"]
                assert removed == named, "a client cannot name where blocks are fetched, or where a replica sends it"
                while not (await stream.read()).request_body.response.body_mutation.streamed_response.end_of_stream:
                    pass
            first = await sent(whole[:-1], is_whole=False)

            async def is_full():
                stream = await sent(whole, is_whole=True)
                answer = await stream.read()
                stream.cancel()
                return answer.immediate_response.status.code == 429

            await until(is_full, "the first one's body is there")
            first.cancel()

            async def is_free():
                return not await is_full()

            await until(is_free, "it is gone")
            for stream in running:
                stream.cancel()
