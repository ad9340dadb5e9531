"""The real Envoy and our picker before pods that speak TLS: verified by name, mixed with others, and replaced."""

import asyncio
import contextlib
import json

import pytest

from fakes import tls_files
from fakes.gateway import gateway, until
from fakes.stub_runtime import StubRuntime
from kvasir_gateway.hold_queue import HoldLimits

pytestmark = [pytest.mark.asyncio, pytest.mark.xdist_group("gateway-edge")]
OF_OURS = ("*.default.svc",)


@pytest.fixture(scope="module")
def ca():
    return tls_files.authority()


@pytest.fixture
async def pods(ca, tmp_path):
    """makes(name, tls) starts a pod. tls: names of its certificate, of ours or another authority's; none for plain."""
    async with contextlib.AsyncExitStack() as stack:

        async def made(name, *, names=OF_OURS, tls=True, by=ca):
            stub = StubRuntime(name)
            if tls:
                tls_files.issued(by, tmp_path / name, names=names)
                stub.tls = tls_files.server_side(tmp_path / name)
            stack.push_async_callback(stub.stop)
            return await stub.start()

        yield made


def code_of(body):
    return json.loads(body)["error"]["code"]


async def test_pods_that_speak_tls_and_others_serve_side_by_side(pods, ca):
    secure, plain = await pods("secure"), await pods("plain", tls=False)
    async with gateway() as front:
        await front.set_tenants(authority=ca.certificate.decode())
        front.objects.serve("a", secure, plain)
        await until(lambda: front.routes("a"), "a")

        async def both():
            answered = {(await front.post("a"))[1] for _ in range(4)}
            return answered == {secure.whole(), plain.whole()}

        await until(both, "both answer")
        assert all(
            request.scheme == ("https" if pod is secure else "http") for pod in (secure, plain) for request in pod.seen
        )
        await until(lambda: secure.state_reads > 0, "its state is read by TLS")
        assert (await front.post("a", stream=True))[0] == 200
        assert "Authorization" not in (front.directory / "envoy.log").read_text()


async def test_until_the_authority_is_known_such_pods_get_nothing(pods, ca):
    pod = await pods("secure")
    async with gateway(hold=HoldLimits(max_wait_s=300)) as front:
        front.objects.serve("a", pod)

        async def known():
            return bool((await front.state()).services)

        await until(known, "the service")
        held = asyncio.create_task(front.post("a"))

        async def waits():
            return any(service.held for service in (await front.state()).services)

        await until(waits, "the request is held")
        assert (pod.seen, pod.state_reads) == ([], 0)
        await front.set_tenants(authority=ca.certificate.decode())
        assert (await held)[:2] == (200, pod.whole())


@pytest.mark.parametrize("wrong", ["name", "authority"])
async def test_no_request_reaches_a_pod_that_is_not_verified(pods, ca, wrong):
    other = tls_files.authority("test")
    pod = await (pods("p", names=("*.other.svc",)) if wrong == "name" else pods("p", by=other))
    right = await pods("right")
    async with gateway() as front:
        await front.set_tenants(authority=ca.certificate.decode())
        front.objects.serve("right", right)
        front.objects.serve("a", pod)
        await until(lambda: front.routes("right"), "another service")
        await until(lambda: front.has_ready("a", 1), "a")
        status, body, _ = await front.post("a", headers={"authorization": "Bearer secret"})
        assert (status, code_of(body)) == (503, "upstream_unavailable")
        assert (pod.seen, pod.state_reads) == ([], 0)


async def test_replicas_are_replaced_by_such_that_speak_tls_and_back_without_a_lost_request(pods, ca):
    before, after = [await pods(f"plain-{n}", tls=False) for n in range(2)], [await pods(f"tls-{n}") for n in range(2)]
    async with gateway() as front:
        await front.set_tenants(authority=ca.certificate.decode())
        front.objects.serve("a", *before)
        await until(lambda: front.routes("a"), "a")
        answers, stopped = [], asyncio.Event()

        async def ask():
            while not stopped.is_set():
                answers.append((await front.post("a", stream=True))[:2])

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        steps = [(before[0], after[1]), after, (after[0], before[1]), before]
        for serving in steps:
            front.objects.serve("a", *serving)
            counts = [len(pod.seen) for pod in serving]

            async def all_serve(serving=serving, counts=counts):
                return all(len(pod.seen) > count for pod, count in zip(serving, counts, strict=True))

            await until(all_serve, "each of these replicas answers")
        stopped.set()
        await asyncio.gather(*asking)
        whole = {pod.whole() for pod in (*before, *after)}
        assert {status for status, _ in answers} == {200}
        assert {body for _, body in answers} <= whole


async def test_another_authority_breaks_no_stream(pods, ca):
    second = tls_files.authority("second")
    pod = await pods("p")
    async with gateway() as front:
        await front.set_tenants(authority=ca.certificate.decode())
        front.objects.serve("a", pod)
        await until(lambda: front.routes("a"), "a")
        pod.hold_tokens = held = asyncio.Event()
        stream = asyncio.create_task(front.post("a", stream=True))
        await until(lambda: pod.open == 1, "the stream has begun")
        await front.set_tenants(authority=ca.certificate.decode() + second.certificate.decode())
        other = await pods("q", by=second)
        front.objects.serve("b", other)
        await until(lambda: front.routes("b"), "a pod of the second authority")
        held.set()
        assert (await stream)[:2] == (200, pod.whole())
        pod.hold_tokens = None
        assert (await front.post("a"))[:2] == (200, pod.whole())
