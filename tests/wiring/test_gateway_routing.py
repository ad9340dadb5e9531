"""The gateway's real Envoy with our picker before pods that stream: who gets which request, and what nobody gets."""

import asyncio
import io
import json

import pytest
import pytest_asyncio
from yarl import URL

from fakes.gateway import gateway, until
from fakes.stub_runtime import stub_runtimes
from kvasir_api import http_apis, names
from kvasir_api.state import RuntimeState
from kvasir_gateway import choice_records

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-routing")]
MAX_BODY = 1 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front():
    async with gateway(max_body_bytes=MAX_BODY) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def pods():
    async with stub_runtimes(2) as stubs:
        yield stubs


def error_of(body):
    return json.loads(body)["error"]


async def test_the_model_names_the_service(front, pods):
    one, two = pods
    front.objects.serve("alpha", one, model="org/alpha-8b")
    front.objects.serve("beta", two)
    await until(lambda: front.routes("org/alpha-8b"), "alpha")
    await until(lambda: front.routes("beta"), "beta")
    assert (await front.post("org/alpha-8b"))[1] == one.whole()
    assert (await front.post("beta"))[1] == two.whole()


async def test_why_a_request_went_where_it_did_is_told_by_the_id_of_its_answer(front, pods):
    one, two = pods
    one.set_state(waiting_uncached_tokens=5000)
    front.objects.serve("why", one, two)
    await until(lambda: front.routes("why"), "why")

    async def busy_is_known():
        status, body, headers = await front.post("why", headers={"x-request-id": "mine"})
        _, page = await front.page("/choices/mine")
        record = json.loads(page)["record"]
        assert (status, headers["x-request-id"], record["service"]) == (200, "mine", "default/why")
        return len(record["candidates"]) == 2 and body == two.whole() and "cheapest of 2" in page

    await until(busy_is_known, "the one that costs less is chosen")
    document = json.loads((await front.page("/choices/mine"))[1])
    line = json.dumps(document["record"]).encode()
    assert choice_records.explained(choice_records.decode(line)) == document["explanation"]
    assert f"127.0.0.1:{two.http_port}, cheapest of 2" in document["explanation"]
    assert (await front.page("/choices/never"))[0] == 404
    assert (await front.page("/choices/mine", method="POST"))[0] == 405


async def test_a_service_is_reached_by_its_namespace_and_name(front, pods):
    one, two = pods
    front.objects.serve("first", one, model="shared")
    front.objects.serve("second", two, model="shared")
    await until(lambda: front.routes("default/second"), "second")
    assert (await front.post("shared"))[1] == (await front.post("default/first"))[1] == one.whole()
    assert (await front.post("default/second"))[1] == two.whole()
    async with front.client.get(f"{front.url}/v1/models/default/first") as response:
        assert (response.status, (await response.json())["id"]) == (200, "default/first")


async def test_a_stream_comes_piece_by_piece_and_byte_by_byte(front, pods):
    pod = pods[0]
    front.objects.serve("streams", pod)
    await until(lambda: front.routes("streams"), "streams")
    pod.hold_tokens = asyncio.Event()
    async with front.client.post(f"{front.url}/v1/chat/completions", json={"model": "streams"}) as response:
        first = await response.content.readexactly(len(pod.piece(0)))
        assert first == pod.piece(0)
        assert pod.open == 1
        pod.hold_tokens.set()
        assert first + await response.read() == pod.whole()
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-pod"] == pod.name
        assert response.headers["x-request-id"]


async def test_a_request_id_of_the_client_is_kept(front, pods):
    front.objects.serve("ids", pods[0])
    await until(lambda: front.routes("ids"), "ids")
    _, _, headers = await front.post("ids", headers={"x-request-id": "mine"})
    assert headers["x-request-id"] == "mine"
    assert pods[0].seen[-1].headers["x-request-id"] == "mine"


async def test_an_unknown_model_is_not_found(front):
    status, body, headers = await front.post("nobody/serves-this")
    assert (status, error_of(body)["code"], headers["content-type"]) == (404, "model_not_found", "application/json")
    assert error_of(body)["param"] == "model"


async def test_a_service_without_ready_pods_is_unavailable_for_now(front, pods):
    front.objects.serve("waits")
    front.objects.edit("waits", pods[0], ready=False)
    await until(lambda: known(front, "waits"), "waits is known")
    status, body, headers = await front.post("waits")
    assert (status, error_of(body)["code"]) == (503, "no_ready_replica")
    assert 2 <= int(headers["retry-after"]) <= 6
    assert "1 of its replicas are starting" in error_of(body)["message"]
    demand = next(s for s in (await front.state()).services if s.name == "waits")
    assert (demand.refused, demand.inflight) == (1, 0)


async def left_alone(front, service, pod):
    """Whether none of twelve requests, which are all served, reached a pod."""
    before = len(pod.seen)
    answers = [await front.post(service) for _ in range(12)]
    assert [status for status, _, _ in answers] == [200] * 12
    return len(pod.seen) == before


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"draining": True}, "draining"), ({"deleted": True}, "terminating"), ({"ready": False}, "not ready")],
)
async def test_a_pod_that_leaves_gets_nothing(front, pods, fields, code):
    stays, leaves = pods
    service = f"leaving-{code.replace(' ', '-')}"
    front.objects.serve(service, stays, leaves)
    await until(lambda: front.routes(service), service)
    front.objects.edit(service, leaves, **fields)
    await until(lambda: left_alone(front, service, leaves), "the pod that leaves is left alone")


async def test_a_pod_that_says_that_it_drains_gets_nothing(front, pods):
    stays, leaves = pods
    front.objects.serve("says", stays, leaves)
    await until(lambda: front.routes("says"), "says")
    leaves.state = RuntimeState(phase="draining")
    await until(lambda: left_alone(front, "says", leaves), "the pod that drains is left alone")


async def test_other_surfaces_are_routed_by_their_model_too(front, pods):
    front.objects.serve("surfaces", *pods, model="surfaces")
    await until(lambda: front.routes("surfaces"), "surfaces")
    for path, model in (("/v1/messages", "surfaces"), ("/api/chat", "surfaces:latest"), ("/v1/responses", "surfaces")):
        async with front.client.post(front.url + path, json={"model": model}) as response:
            assert response.status == 200, path
    async with front.client.post(f"{front.url}/v1/messages", json={"model": "none"}) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (404, "not_found_error")
    async with front.client.get(f"{front.url}/api/tags") as response:
        assert "surfaces:latest" in [card["name"] for card in (await response.json())["models"]]


async def test_a_stored_response_is_asked_of_the_pod_that_holds_it(front, pods):
    instances = [http_apis.new_instance("default/holds") for _ in pods]
    for instance, stub in zip(instances, pods, strict=True):
        stub.state = RuntimeState(phase="ready", instance=instance)
    front.objects.serve("holds", *pods)
    await until(lambda: front.routes("holds"), "holds")

    async def ask(method, path, **body):
        async with front.client.request(method, front.url + path, **body) as response:
            return response.status, response.headers.get("x-pod")

    for instance, stub in zip(instances, pods, strict=True):
        one = f"/v1/responses/resp_{instance}{'f' * 24}"

        async def leads_there(path=one, name=stub.name):
            return await ask("GET", path) == (200, name)

        await until(leads_there, "its state was read")
        for _ in range(4):
            assert await ask("GET", f"{one}/input_items?limit=1") == (200, stub.name)
            assert await ask("DELETE", one) == (200, stub.name)
            assert await ask("POST", f"{one}/cancel") == (200, stub.name)
            assert await ask("POST", f"{one}/cancel", json={}) == (200, stub.name)
            body = {"model": "holds", "previous_response_id": one.rpartition("/")[2]}
            assert await ask("POST", "/v1/responses", json=body) == (200, stub.name)
    assert await ask("GET", f"/v1/responses/resp_{'e' * 52}") == (404, None)
    for stub in pods:
        stub.state = RuntimeState(phase="ready")


async def test_a_stream_outlives_its_pods_place_in_the_table(front, pods):
    stays, leaves = pods
    front.objects.serve("outlives", leaves)
    await until(lambda: front.routes("outlives"), "outlives")
    leaves.hold_tokens = hold = asyncio.Event()
    async with front.client.post(f"{front.url}/v1/completions", json={"model": "outlives"}) as response:
        assert await response.content.readexactly(len(leaves.piece(0))) == leaves.piece(0)
        leaves.hold_tokens = None
        front.objects.serve("outlives", stays)

        async def moved():
            return (await front.post("outlives"))[2].get("x-pod") == stays.name

        await until(moved, "new requests go to the other pod")
        hold.set()
        rest = await response.read()
    assert leaves.piece(0) + rest == leaves.whole()


async def test_headers_of_the_client_cannot_name_a_destination(front, pods):
    mine, foreign = pods
    front.objects.serve("mine", mine)
    front.objects.serve("foreign", foreign)
    await until(lambda: front.routes("mine"), "mine")
    await until(lambda: front.routes("foreign"), "foreign")
    forged = {
        names.HEADER_DESTINATION: f"127.0.0.1:{foreign.http_port}",
        names.HEADER_CLUSTER: "default.foreign",
        names.HEADER_INFLIGHT_ID: "forged",
    }
    before = len(foreign.seen)
    for _ in range(5):
        status, body, _ = await front.post("mine", headers=forged)
        assert (status, body) == (200, mine.whole())
    assert len(foreign.seen) == before
    sent = mine.seen[-1].headers
    assert sent[names.HEADER_DESTINATION] == f"127.0.0.1:{mine.http_port}"
    assert sent[names.HEADER_INFLIGHT_ID] != "forged"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b'{"model": ', "invalid_json", None),
        (b"", "invalid_json", None),
        (b"\xff\xfe{}", "invalid_json", None),
        (b'{"a": ' + b"[" * 100_000, "invalid_json", None),
        (b'{"messages": []}', None, "model"),
        (b'{"model": 7}', None, "model"),
        (b'["model"]', None, "model"),
        (b'{"model": "routes", "n": 1} x', "invalid_json", None),
    ],
)
async def test_a_body_that_names_no_model_is_refused(front, body, code, param):
    async with front.client.post(f"{front.url}/v1/chat/completions", data=body) as response:
        error = error_of(await response.read())
        assert (response.status, error["type"]) == (400, "invalid_request_error")
        assert (error["code"], error["param"]) == (code, param)


async def test_headers_of_the_client_set_no_timeouts_and_no_tries(front, pods):
    pod = pods[0]
    front.objects.serve("patient", pod)
    await until(lambda: front.routes("patient"), "patient")
    pod.hold_headers = asyncio.Event()
    own = {"x-envoy-upstream-rq-timeout-ms": "1", "x-envoy-max-retries": "99", "x-envoy-retry-on": "5xx"}
    asked = asyncio.create_task(front.post("patient", headers=own))
    await until(lambda: pod.open == 1, "the request waits at the pod")
    done, _ = await asyncio.wait({asked}, timeout=0.2)
    assert not done
    pod.hold_headers.set()
    assert (await asked)[:2] == (200, pod.whole())
    pod.hold_headers, pod.failure, before = None, (500, b'{"error": {}}'), len(pod.seen)
    assert (await front.post("patient", headers=own))[0] == 500
    assert len(pod.seen) == before + 1


async def pieces(total):
    for _ in range(total // 65_536):
        yield b" " * 65_536


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(front, chunked):
    data = pieces(2 * MAX_BODY) if chunked else io.BytesIO(b" " * (MAX_BODY + 1))
    async with front.client.post(f"{front.url}/v1/chat/completions", data=data) as response:
        error = error_of(await response.read())
        assert (response.status, error["code"]) == (413, "body_too_large")
        assert str(MAX_BODY) in error["message"]


async def test_a_body_just_below_the_limit_arrives(front, pods):
    front.objects.serve("large", pods[0])
    await until(lambda: front.routes("large"), "large")
    assert (await front.post("large", prompt="x" * (MAX_BODY - 100)))[0] == 200


async def known(front, model):
    async with front.client.get(f"{front.url}/v1/models") as response:
        return model in [card["id"] for card in (await response.json())["data"]]


async def test_models_are_the_union_of_all_services(front, pods):
    front.objects.serve("listed", pods[0], model="org/listed")
    await until(lambda: known(front, "org/listed"), "org/listed")
    for path in ("org/listed", "org%2Flisted"):
        async with front.client.get(URL(f"{front.url}/v1/models/{path}", encoded=True)) as response:
            card = http_apis.model_card("org/listed", 1767225600)
            assert (response.status, await response.json()) == (200, card)
    async with front.client.get(f"{front.url}/v1/models/none") as response:
        assert (response.status, error_of(await response.read())["code"]) == (404, "model_not_found")
    front.objects.drop("listed")

    async def gone():
        return not await known(front, "org/listed")

    await until(gone, "a deleted service is no longer listed")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/healthz", 200),
        ("GET", "/", 404),
        ("POST", "/metrics", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models/x", 405),
        ("POST", "/v1/../ops/drain", 404),
    ],
)
async def test_only_what_is_meant_for_clients_is_there(front, method, path, status):
    async with front.client.request(method, URL(f"{front.url}{path}", encoded=True), data=b"{}") as response:
        assert response.status == status
        assert response.headers["content-type"] == "application/json"


async def test_metrics_tell_what_happened(front, pods):
    front.objects.serve("counted", pods[0])
    await until(lambda: front.routes("counted"), "counted")

    async def told():
        async with front.client.get(f"http://127.0.0.1:{front.state_port}/metrics") as response:
            text = await response.text()
        labels = 'namespace="default",service="counted"'
        ok = 'kvasir_gateway_requests_total{namespace="default",outcome="ok",service="counted"}'
        return f"kvasir_gateway_inflight_requests{{{labels}}} 0.0" in text and ok in text

    await until(told, "metrics of the service")
