"""An overload of real engines behind the real Envoy, our picker and relay: what clients get, and in which order."""

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import openai
import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.gateway import DEADLINE_S, RunningPod, gateway, until
from kvasir_gateway.hold_queue import HoldLimits

pytestmark = [pytest.mark.asyncio, pytest.mark.xdist_group("gateway-overload")]
SHAPE = checkpoints.Shape(
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    max_position_embeddings=131_072,
)
SERVE = (sys.executable, "-m", "kvasir_runtime", "serve")
PLACES = 2 * (1 + 1)
"""Of two engines, with one sequence and one that waits each."""
MOST_TOKENS = 100_000
"""Of the streams that fill them until the test ends these."""
HELD, BEYOND, FEW, TOKENS = 24, 8, 6, 24


@dataclass
class Outcomes:
    """What clients got: counts by what, and tenants of those that were answered, in this order."""

    counts: Counter[str] = field(default_factory=Counter)
    answered: list[str] = field(default_factory=list)

    @property
    def refused(self) -> int:
        return sum(number for what, number in self.counts.items() if "overloaded" in what)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    model = checkpoints.write(tmp_path_factory.mktemp("model") / "tiny", SHAPE)
    options = ("--device", "cpu", "--max-model-len", str(MOST_TOKENS + 64), "--kv-cache-tokens", str(2 * MOST_TOKENS))
    bounds = ("--max-sequences", "1", "--max-waiting", "1", "--tenant-header", "x-tenant")
    with (
        api_process(model, *options, *bounds, command=SERVE) as one,
        api_process(model, *options, *bounds, command=SERVE) as two,
    ):
        yield [RunningPod(f"engine-{n}", server.http[1], server.ops[1]) for n, server in enumerate((one, two))]


async def one(client, outcomes, tenant, number):
    """A request of the openai client, which tries once."""
    body = {"model": "tiny", "prompt": "word " * 8, "max_tokens": TOKENS, "extra_body": {"ignore_eos": True}}
    create = client.with_options(default_headers={"x-tenant": tenant}).completions.create
    try:
        if number % 2:
            chunks = [chunk async for chunk in await create(stream=True, **body)]
            outcomes.counts[f"answered {chunks[-1].choices[0].finish_reason}"] += 1
        else:
            outcomes.counts[f"answered {(await create(**body)).choices[0].finish_reason}"] += 1
        outcomes.answered.append(tenant)
    except openai.APIStatusError as error:
        again = int(error.response.headers["retry-after"]) >= 1
        outcomes.counts[f"{error.status_code} {error.code} {again}"] += 1
    except openai.APIError as error:  # an event of a stream that had been told its place
        outcomes.counts[f"event {error.code}"] += 1


async def leaving(front):
    """A client that streams, and leaves when it has been told its place: anew where a replica refuses it. The place."""
    while True:
        async with stream(front, "left") as response:
            async for line in response.content:
                if line.startswith(b": kvasir-held "):
                    return json.loads(line.removeprefix(b": kvasir-held "))["place"]
        await asyncio.sleep(0.05)


async def filling(front):
    """A client that streams until it is ended: anew where a replica refuses it, or has told it all."""
    while True:
        async with stream(front, "filling", max_tokens=MOST_TOKENS) as response:
            async for _ in response.content:
                pass
        await asyncio.sleep(0.05)


def stream(front, tenant, **fields):
    body = {"model": "tiny", "prompt": "word", "stream": True, "ignore_eos": True, **fields}
    unbounded, where = aiohttp.ClientTimeout(total=None), f"{front.url}/v1/completions"
    return front.client.post(where, json=body, headers={"x-tenant": tenant}, timeout=unbounded)


async def test_real_engines_under_overload_answer_or_refuse_with_a_time_to_come_back(engines):
    outcomes = Outcomes()
    async with (
        gateway(hold=HoldLimits(max_requests=HELD, max_wait_s=600.0), relay=True) as front,
        openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="k", max_retries=0, timeout=600.0) as client,
    ):
        front.objects.serve("tiny", *engines, tenant_header="x-tenant")
        await until(lambda: front.has_ready("tiny", 2), "the picker knows both")
        await until(lambda: answers(front), "Envoy does")
        fill = [asyncio.create_task(filling(front)) for _ in range(PLACES)]
        for engine in engines:
            await until(lambda found=engine: is_full(front, found), f"{engine.name} is full")
        place = await asyncio.wait_for(leaving(front), DEADLINE_S)
        assert place == 1, "the picker knows that they are"
        await until(lambda: stands(front, held=0, abandoned=1), "it left")
        many = [asyncio.create_task(one(client, outcomes, "many", n)) for n in range(HELD + BEYOND)]
        await until(lambda: settled(front, outcomes, HELD + BEYOND), "each waits or is refused")
        few = [asyncio.create_task(one(client, outcomes, "few", n)) for n in range(FEW)]
        await until(lambda: settled(front, outcomes, HELD + BEYOND + FEW), "others gave way to these")
        assert await asyncio.wait_for(leaving(front), DEADLINE_S) > 0
        await until(lambda: stands(front, abandoned=2), "one more waited and left")
        demand = await front.demand("tiny")
        for task in fill:
            task.cancel()
        await asyncio.gather(*many, *few)
        await asyncio.gather(*fill, return_exceptions=True)
        await until(lambda: stands(front, held=0, inflight=0), "nothing is left")
    assert set(outcomes.counts) <= {"answered length", "429 overloaded True", "event overloaded"}
    assert 0 < demand.shed <= BEYOND
    assert 0 < demand.expired <= FEW + 1
    # A replica may still refuse what a slow machine takes longer to count than the gateway waits for.
    assert outcomes.refused >= BEYOND + FEW + 1
    assert outcomes.refused + outcomes.counts["answered length"] == HELD + BEYOND + FEW
    assert outcomes.counts["answered length"] >= HELD // 4
    assert "few" in outcomes.answered, "a tenant with little is not kept out by another"


async def answers(front):
    body = {"model": "tiny", "prompt": "word", "max_tokens": 1}
    async with front.client.post(f"{front.url}/v1/completions", json=body) as response:
        return response.status == 200


async def is_full(front, engine):
    """Whether an engine itself says so, which counts a request later than Envoy has forwarded it."""
    async with front.client.get(f"http://127.0.0.1:{engine.ops_port}/state") as response:
        found = await response.json()
    return (found["running"], found["waiting"]) == (1, 1)


async def settled(front, outcomes, number):
    """Whether so many requests are held or over. Those first: one that gives way meanwhile counts as neither."""
    over = sum(outcomes.counts.values())
    return over + (await front.demand("tiny")).held == number


async def stands(front, **want):
    demand = await front.demand("tiny")
    return {name: getattr(demand, name) for name in want} == want
