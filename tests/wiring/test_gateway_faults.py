"""The gateway's real Envoy with our picker when something breaks: pods, clients, Envoy, or changes under load."""

import asyncio
import itertools
import json

import aiohttp
import pytest
import pytest_asyncio

from fakes.gateway import FakeObjects, gateway, until
from fakes.readings import has_read
from fakes.stub_runtime import stub_runtimes

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-faults")]
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, DATA, HEADERS, RST_STREAM = 4, 0, 1, 3
ACK, END_STREAM, END_HEADERS = 1, 1, 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front():
    async with gateway() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def pods():
    async with stub_runtimes(3) as stubs:
        yield stubs


def asked(front, service):
    return front.client.post(f"{front.url}/v1/chat/completions", json={"model": service})


async def has_inflight(front, service, count):
    return await front.inflight(service) == count


async def idle(front, service):
    return await has_inflight(front, service, 0)


async def test_a_pod_killed_in_mid_stream_is_an_error_for_the_client(front, pods):
    pod = pods[0]
    front.objects.serve("dies", pod)
    await until(lambda: front.routes("dies"), "dies")
    pod.hold_tokens = asyncio.Event()
    async with asked(front, "dies") as response:
        assert await response.content.readexactly(len(pod.piece(0))) == pod.piece(0)
        await pod.kill()
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await until(lambda: idle(front, "dies"), "no request in flight")


async def test_a_pod_killed_before_its_first_byte_is_replaced_by_another(front, pods):
    dies, lives, _ = pods
    front.objects.serve("before", dies, lives)
    await until(lambda: front.routes("before"), "before")
    dies.hold_headers = asyncio.Event()
    waiting = [asyncio.create_task(front.post("before")) for _ in range(6)]
    await until(lambda: dies.open > 0, "a request waits at the pod that will die")
    await dies.kill()
    for status, body, _ in await asyncio.gather(*waiting):
        assert (status, body) == (200, lives.whole())
    await until(lambda: idle(front, "before"), "no request in flight")


async def test_a_dead_pod_that_still_counts_as_ready_harms_no_request(front, pods):
    dead, one, two = pods
    front.objects.serve("half", dead, one, two)
    await until(lambda: front.routes("half"), "half")
    await dead.kill()
    answers = await asyncio.gather(*(front.post("half") for _ in range(24)))
    assert [status for status, _, _ in answers] == [200] * 24
    await until(lambda: idle(front, "half"), "no request in flight")


async def test_no_pod_alive_is_told_in_openais_shape(front, pods):
    pod = pods[0]
    front.objects.serve("gone", pod)
    await until(lambda: front.routes("gone"), "gone")
    await pod.kill()
    status, body, headers = await front.post("gone")
    error = json.loads(body)["error"]
    assert (status, error["code"], headers["retry-after"]) == (503, "upstream_unavailable", "1")
    assert headers["content-type"] == "application/json"
    await until(lambda: idle(front, "gone"), "no request in flight")


async def test_a_pod_that_refuses_because_it_leaves_is_replaced_by_another(front, pods):
    leaves, stays, _ = pods
    leaves.failure = (503, b'{"error": {"code": "draining"}}')
    front.objects.serve("refuses", leaves, stays)
    await until(lambda: front.routes("refuses"), "refuses")
    answers = [await front.post("refuses") for _ in range(12)]
    while not leaves.seen:  # of equal ones any is chosen
        answers.append(await front.post("refuses"))
    assert {(status, body) for status, body, _ in answers} == {(200, stays.whole())}
    stays.failure = leaves.failure
    status, body, _ = await front.post("refuses")
    assert (status, body) == leaves.failure


async def test_pods_of_a_node_that_cannot_report_go_on(front, pods):
    """After an outage of the API server they are marked as not ready, while the picker reads that they serve."""
    front.objects.serve("unheard", *pods)
    await until(lambda: front.routes("unheard"), "unheard")
    await until(lambda: has_read(front, "unheard", len(pods)), "the picker has read all")
    for pod in pods:
        front.objects.edit("unheard", pod, ready=False, started=True)
    await until(lambda: front.has_ready("unheard", 0), "the picker has seen the conditions")
    await until(lambda: all_served(front, "unheard", pods), "the pods still serve")
    for pod in pods:
        pod.set_state(message="model_output_invalid: …")
    await until(lambda: refused(front, "unheard"), "what the pods say of themselves counts")


async def all_served(front, service, pods):
    """Whether pods answer twelve requests, of which none comes when their last reading is too old to count."""
    answers = [await front.post(service) for _ in range(12)]
    assert {(status, body) for status, body, _ in answers if status != 503} <= {(200, pod.whole()) for pod in pods}
    return all(status == 200 for status, _, _ in answers)


async def refused(front, service):
    return (await front.post(service))[0] == 503


async def test_envoy_by_itself_chooses_no_pod_that_is_not_ready(front, pods):
    """A second try, for which the picker named no pod, must not go to one that has only just started."""
    leaves, starts, _ = pods
    starts.set_state(phase="loading")
    leaves.failure = (503, b'{"error": {"code": "draining"}}')
    front.objects.serve("alone", leaves)
    front.objects.edit("alone", starts, ready=False, started=True)

    async def reached():
        return (await front.post("alone"))[1] == leaves.failure[1]

    await until(reached, "alone")
    answers = [await front.post("alone") for _ in range(12)]
    assert {(status, body) for status, body, _ in answers} == {leaves.failure}
    assert starts.seen == []


async def test_a_stalled_pod_is_reached_where_it_is_all_that_there_is(front, pods):
    stalled = pods[0]
    stalled.set_state(stalled_s=3.0, message="EngineStalled: …")
    front.objects.serve("stalled")
    front.objects.edit("stalled", stalled, ready=False, started=True)
    await until(lambda: front.routes("stalled"), "the stalled pod")
    ready = pods[1]
    front.objects.serve("stalled", ready)
    front.objects.edit("stalled", stalled, ready=False, started=True)
    await until(lambda: front.has_ready("stalled", 1), "a ready one")
    await until(lambda: front.routes("stalled"), "the ready pod")


async def test_an_error_of_a_pod_is_not_touched(front, pods):
    front.objects.serve("errs", pods[0])
    await until(lambda: front.routes("errs"), "errs")
    pods[0].failure = (500, b'{"error": {"message": "mine"}}')
    status, body, headers = await front.post("errs")
    assert (status, body) == (500, b'{"error": {"message": "mine"}}')
    assert "retry-after" not in headers
    assert len(pods[0].seen) == 2


async def test_a_client_that_leaves_frees_its_place(front, pods):
    pod = pods[0]
    front.objects.serve("leaves", pod)
    await until(lambda: front.routes("leaves"), "leaves")
    pod.hold_tokens, pod.hold_headers = asyncio.Event(), None
    streaming = await asked(front, "leaves").__aenter__()
    pod.hold_headers = asyncio.Event()
    silent = [asyncio.create_task(front.post("leaves")) for _ in range(4)]
    await until(lambda: pod.open == 5, "five requests at the pod")
    await until(lambda: has_inflight(front, "leaves", 5), "the requests before them have ended")
    streaming.close()
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)
    await until(lambda: pod.open == 0, "the pod heard of it")
    assert pod.aborted == 5
    await until(lambda: idle(front, "leaves"), "no request in flight")


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def fields(**found):
    """As HPACK writes fields without its table."""
    pairs = ((name.replace("_", "-").encode(), value.encode()) for name, value in found.items())
    return b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in pairs)


async def test_the_audit_log_and_the_counts_say_how_an_answer_ended(pods):
    """Each began with status 200. One breaks, one is silent for too long, one has an HTTP/2 client that leaves."""
    dies, silent, left = pods
    async with gateway(idle_timeout_s=1) as front:
        for name, pod in (("dies", dies), ("silent", silent), ("left", left)):
            front.objects.serve(name, pod)
            await until(lambda name=name: front.routes(name), name)
            pod.hold_tokens = asyncio.Event()

        async def broken(name):
            sent = {"model": name, "stream": True}
            where, headers = f"{front.url}/v1/chat/completions", {"x-request-id": name}
            async with front.client.post(where, json=sent, headers=headers) as response:
                assert await response.content.readexactly(len(dies.piece(0))) != b""
                if name == "dies":
                    await dies.kill()
                with pytest.raises(aiohttp.ClientError):
                    await response.read()

        await asyncio.gather(broken("dies"), broken("silent"))
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        head = {":method": "POST", ":scheme": "http", ":path": "/v1/chat/completions", ":authority": "x"}
        writer.write(HTTP_2 + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        writer.write(frame(HEADERS, END_HEADERS, 1, fields(**head, x_request_id="left")))
        writer.write(frame(DATA, END_STREAM, 1, b'{"model": "left"}'))
        await reader.readuntil(left.piece(0))
        writer.write(frame(RST_STREAM, 0, 1, (8).to_bytes(4)))

        def ends():
            lines = map(json.loads, front.audit_lines)
            return {line["request_id"]: (line["status"], line["outcome"]) for line in lines}

        broke = (200, "server_error")
        want = {"dies": broke, "silent": broke, "left": (200, "aborted")}
        await until(lambda: want.items() <= ends().items(), "their lines")
        _, metrics = await front.page("/metrics")
        for name, (_, outcome) in want.items():
            labels = f'namespace="default",outcome="{outcome}",service="{name}"'
            assert f"kvasir_gateway_requests_total{{{labels}}} 1.0" in metrics
        writer.close()


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(front, pods):
    front.objects.serve("hasty", *pods)
    await until(lambda: front.routes("hasty"), "hasty")

    async def leave(turns):
        task = asyncio.create_task(front.post("hasty"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(leave(turns) for turns in range(0, 200, 2)))
    await until(lambda: idle(front, "hasty"), "no request in flight")
    assert (await front.post("hasty"))[0] == 200


async def test_many_streams_at_once_break_nothing(front, pods):
    front.objects.serve("many", *pods)
    await until(lambda: front.routes("many"), "many")
    for pod in pods:
        pod.tokens, pod.hold_tokens = 20, asyncio.Event()
    tasks = [asyncio.create_task(front.post("many")) for _ in range(32)]
    await until(lambda: sum(pod.open for pod in pods) == 32, "32 streams are open")
    await until(lambda: has_inflight(front, "many", 32), "the request before them has ended")
    assert max(pod.open for pod in pods) <= 1.25 * 32 / 3 + 1 + 1e-9
    for pod in pods:
        pod.hold_tokens.set()
    whole = {pod.name: pod.whole() for pod in pods}
    for status, body, headers in await asyncio.gather(*tasks):
        assert status == 200
        assert body == whole[headers["x-pod"]]
    await until(lambda: idle(front, "many"), "no request in flight")


async def test_changes_under_load_lose_nothing(front, pods):
    """Pods come and go, and another service appears and disappears, while streams begin and end all the time."""
    front.objects.serve("busy", *pods)
    await until(lambda: front.routes("busy"), "busy")
    whole = {pod.name: pod.whole() for pod in pods}
    done = asyncio.Event()
    answers = []

    async def client():
        while not done.is_set():
            answers.append(await front.post("busy"))

    clients = [asyncio.create_task(client()) for _ in range(8)]
    for turn in itertools.count():
        if turn >= 30 and len(answers) > 30:
            break
        front.objects.serve("busy", *(pod for index, pod in enumerate(pods) if index != turn % 3))
        if turn % 2:
            front.objects.drop("passing")
        else:
            front.objects.serve("passing", pods[0])
        await asyncio.sleep(0.04)
    done.set()
    await asyncio.gather(*clients)
    for status, body, headers in answers:
        assert status == 200, body
        assert body == whole[headers["x-pod"]]
    await until(lambda: idle(front, "busy"), "no request in flight")


async def test_requests_of_an_envoy_that_died_are_over(pods):
    pod = pods[0]
    async with gateway() as front:
        front.objects.serve("restart", pod)
        await until(lambda: front.routes("restart"), "restart")
        pod.hold_tokens = asyncio.Event()
        streaming = await asked(front, "restart").__aenter__()
        await until(lambda: has_inflight(front, "restart", 1), "the request before it has ended")
        await front.stop_envoy()
        streaming.close()
        pod.hold_tokens = None
        await front.start_envoy()
        await until(lambda: idle(front, "restart"), "the old request is forgotten")

        async def routes():
            try:
                return await front.routes("restart")
            except aiohttp.ClientError:
                return False

        await until(routes, "the new Envoy routes")
        await until(front.is_ready, "ready again")


async def test_no_request_is_taken_before_the_first_lists_are_complete(pods):
    objects = FakeObjects()
    objects.synced.clear()
    async with gateway(objects=objects) as front:
        objects.serve("early", pods[0])

        async def page():
            async with front.client.get(f"http://127.0.0.1:{front.state_port}/readyz") as response:
                return response.status, await response.text()

        async def listens():
            try:
                return await page() == (503, "services and pods are not listed yet\n")
            except aiohttp.ClientError:
                return False

        await until(listens, "the state port answers")
        objects.synced.set()
        await until(front.is_ready, "ready")
        assert (await front.post("early"))[0] == 200


async def test_streams_outlive_their_picker_and_the_next_one_serves(pods):
    pod = pods[0]
    async with gateway() as front:
        front.objects.serve("outlives", pod)
        await until(lambda: front.routes("outlives"), "outlives")
        pod.hold_tokens = hold = asyncio.Event()
        async with asked(front, "outlives") as response:
            assert await response.content.readexactly(len(pod.piece(0))) == pod.piece(0)
            pod.hold_tokens = None
            await front.stop_picker()
            front.start_picker()
            await until(front.is_ready, "the next picker is ready")
            assert (await front.post("outlives"))[0] == 200
            await until(lambda: has_inflight(front, "outlives", 1), "the stream of the picker before counts")
            hold.set()
            assert pod.piece(0) + await response.read() == pod.whole()
        await until(lambda: idle(front, "outlives"), "no request in flight")


async def test_without_a_picker_envoy_says_so():
    async with gateway() as front:
        await front.stop_picker()
        status, body, headers = await front.post("any")
        assert (status, json.loads(body)["error"]["code"]) == (503, "gateway_unavailable")
        assert headers["retry-after"] == "1"
