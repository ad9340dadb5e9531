"""ModelRoutes with the real Envoy, relay and picker: shares, rules, fallbacks, and what the client and the pods see."""

import asyncio
import json
from collections import Counter

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from fakes.gateway import gateway, until
from fakes.stub_runtime import stub_runtimes
from kvasir_api import names
from kvasir_api.state import MeasuredRates, TtftForecast
from kvasir_gateway.hold_queue import HoldLimits

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-routes")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front():
    async with gateway(hold=HoldLimits(max_wait_s=60), relay=True) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def pods():
    async with stub_runtimes(3) as stubs:
        yield stubs


async def answered_by(front, model, **fields):
    """The service and the fallback's reason that the head of an answer names."""
    status, _, headers = await front.post(model, **fields)
    assert status == 200
    return headers["x-kvasir-service"], headers.get("x-kvasir-fallback", "")


def to(*targets):
    return [{"targets": [{"service": name, "weight": weight} for name, weight in targets]}]


async def routed(front, model, service):
    return (await front.post(model))[2].get("x-kvasir-service") == service


async def counts(front, route, service):
    """Whether a request has gone to a service by a route."""
    await front.post(f"default/{service}")
    labels = f'namespace="default",reason="target",route="{route}",service="{service}"'
    return f"kvasir_gateway_routed_requests_total{{{labels}}}" in (await front.page("/metrics"))[1]


async def test_shares_of_requests_go_to_two_services_under_one_name(front, pods):
    stable, canary, _ = pods
    front.objects.serve("stable", stable, model="chat")
    front.objects.serve("canary", canary)
    front.objects.route("share", modelName="chat", rules=to(("stable", 1), ("canary", 1)))
    await until(lambda: routed(front, "chat", "default/canary"), "a share of the canary")
    await until(lambda: routed(front, "chat", "default/stable"), "a share of the stable one")
    stable.seen.clear()
    canary.seen.clear()
    found = Counter([(await answered_by(front, "chat"))[0] for _ in range(60)])
    assert found.keys() == {"default/stable", "default/canary"}
    assert (len(stable.seen), len(canary.seen)) == (found["default/stable"], found["default/canary"])
    same = {(await answered_by(front, "chat", headers={"x-session-id": "s"})) for _ in range(8)}
    assert len(same) == 1
    models = {json.loads(await request.read())["model"] for request in canary.seen}
    assert models == {"default/canary"}, "the name that these pods know"
    assert {json.loads(await request.read())["model"] for request in stable.seen} == {"chat"}
    _, page = await front.page("/metrics")
    for service in ("stable", "canary"):
        labels = f'namespace="default",reason="target",route="share",service="{service}"'
        assert f"kvasir_gateway_routed_requests_total{{{labels}}}" in page
    front.objects.route("share")


async def test_long_and_less_urgent_requests_go_to_services_of_their_own(front, pods):
    for name, pod in zip(("short", "long", "cheap"), pods, strict=True):
        front.objects.serve(name, pod)
    rules = [
        {"match": {"minPromptTokens": 2000}, "targets": [{"service": "long"}]},
        {"match": {"minPriority": 1}, "targets": [{"service": "cheap"}]},
        *to(("short", 1)),
    ]
    front.objects.route("short", rules=rules)
    for name in ("short", "long", "cheap"):
        await until(lambda name=name: front.routes(f"default/{name}"), name)
    await until(lambda: routed(front, "short", "default/short"), "the route")
    text = [{"role": "user", "content": "é" * 20_000}]
    assert (await answered_by(front, "short", messages=text))[0] == "default/long"
    assert json.loads(await pods[1].seen[-1].read()) == {"model": "default/long", "messages": text}, (
        "all of a large body"
    )
    assert (await answered_by(front, "short", priority=1))[0] == "default/cheap"
    assert (await answered_by(front, "short", headers={"x-kvasir-priority": "3"}))[0] == "default/cheap"
    assert (await answered_by(front, "short", priority=1, headers={"x-kvasir-priority": "0"}))[0] == "default/short"
    front.objects.route("short")


async def test_a_fallback_answers_while_the_target_cannot_and_says_so(front, pods):
    main, other, _ = pods
    front.objects.serve("main", main)
    front.objects.serve("other", other)
    await until(lambda: front.routes("other"), "other")
    front.objects.route("main", rules=to(("main", 1)), fallbacks=[{"service": "other"}])
    await until(lambda: counts(front, "main", "main"), "the route")
    front.objects.serve("main")

    async def falls_back_as(why):
        return await answered_by(front, "main") == ("default/other", why)

    await until(lambda: falls_back_as("AtZero"), "it has no replica")
    assert (await front.demand("main")).last_request_age_s >= 0, "a request wakes the target all the same"
    front.objects.serve("main", main)

    async def is_back():
        return await answered_by(front, "main") == ("default/main", "")

    await until(is_back, "the target")
    slow = {"waiting": 9, "waiting_uncached_tokens": 100_000, "rates": MeasuredRates(prefill_tokens_per_s=1000.0)}
    main.set_state(**slow, ttft=TtftForecast(queue_s=100.0))
    await until(lambda: falls_back_as("Saturated"), "the target is saturated")
    other.set_state(**slow, ttft=TtftForecast(queue_s=100.0))
    await until(is_back, "where no fallback can answer, the target does")
    main.set_state(waiting=0, waiting_uncached_tokens=0, stalled_s=5.0)
    other.set_state(waiting=0, waiting_uncached_tokens=0)
    await until(lambda: falls_back_as("Stalled"), "the target is stalled")
    front.objects.route("main", rules=to(("absent", 1)), fallbacks=[{"service": "other"}])
    await until(lambda: falls_back_as("Stalled"), "the target does not exist")
    front.objects.route("main", rules=to(("absent", 1)))

    async def is_refused():
        status, body, _ = await front.post("main")
        return status == 503 and json.loads(body)["error"]["code"] == "no_ready_replica"

    await until(is_refused, "no service at all")
    front.objects.route("main")


async def test_a_held_request_goes_to_the_fallback_that_becomes_ready_first(front, pods):
    other = pods[1]
    front.objects.serve("sleeps", other)
    front.objects.serve("spare", other)
    front.objects.route("sleeps", rules=to(("sleeps", 1)), fallbacks=[{"service": "spare", "when": ["AtZero"]}])
    await until(lambda: counts(front, "sleeps", "sleeps"), "the route")
    for name in ("sleeps", "spare"):
        front.objects.serve(name)
        await until(lambda name=name: front.has_ready(name, 0), "no replica")
    waiting = asyncio.create_task(front.post("sleeps"))

    async def is_held():
        return (await front.demand("sleeps")).held == 1

    await until(is_held, "it waits")
    front.objects.serve("spare", other)
    status, body, headers = await waiting
    assert (status, body) == (200, other.whole())
    assert (headers["x-kvasir-service"], headers["x-kvasir-fallback"]) == ("default/spare", "AtZero")
    assert json.loads(await other.seen[-1].read()) == {"model": "default/spare"}, "also after it was held"
    front.objects.route("sleeps")


async def test_a_relayed_stream_and_the_official_client_get_what_the_route_says(front, pods):
    front.objects.serve("one", pods[0])
    front.objects.route("named", rules=to(("one", 1)))
    await until(lambda: routed(front, "default/named", "default/one"), "the route")
    assert (await answered_by(front, "default/named", stream=True, headers={"x-kvasir-resume": "1"})) == (
        "default/one",
        "",
    )
    assert names.HEADER_CONTINUATION in pods[0].seen[-1].headers, "it may be resumed"
    front.objects.route("named", rules=to(("one", 1)), resumeStreams=True)

    async def resumes():
        await answered_by(front, "default/named", stream=True)
        return names.HEADER_CONTINUATION in pods[0].seen[-1].headers

    await until(resumes, "streams may be resumed without a header")
    forged = {"x-kvasir-service": "default/other", "x-kvasir-fallback": "Stalled", "x-kvasir-relayed": "x"}
    assert await answered_by(front, "default/named", headers=forged) == ("default/one", "")
    client = AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none")
    async with client:
        assert "default/named" in {model.id async for model in client.models.list()}
        assert (await client.models.retrieve("default/named")).id == "default/named"
        raw = await client.chat.completions.with_raw_response.create(model="default/named", messages=[])
        assert raw.headers["x-kvasir-service"] == "default/one"
    front.objects.route("named")
