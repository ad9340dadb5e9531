"""The gateway's real Envoy and picker before two real servers: requests go to the replica that holds their prefix."""

import contextlib
import signal
import sys
import time

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import HERE, api_process
from fakes.gateway import RunningPod, gateway, until
from fakes.readings import has_read
from kvasir_api import names
from kvasir_local import addresses

pytestmark = pytest.mark.xdist_group("gateway-prefixes")
FAKE = (sys.executable, str(HERE / "serve_fake.py"))
ARGS = ("--kv-cache-tokens", "32768", "--max-model-len", "8192", "--api-key", "key-of-a", "--api-key", "key-of-b")
SYSTEM = "the operator watches the services and the engine reads a plan and answers with tokens " * 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """One whose prompts take time to compute."""
    return checkpoints.write(tmp_path_factory.mktemp("model") / "paced")


@pytest.fixture(scope="module")
def servers(model):
    """Two, which start at the same time, at ports that no connection takes before a successor listens there."""
    with contextlib.ExitStack() as stack:
        env, free = {names.ENV_SERVICE: "default/paced"}, iter(addresses.free_ports(4))
        started = [
            stack.enter_context(
                api_process(model, *ARGS, *at_ports(http, ops), command=FAKE, env=env, wait="listening")
            )
            for http, ops in zip(free, free, strict=True)
        ]
        for server in started:
            server.wait_ready()
        yield started


def at_ports(http, ops):
    return "--port", str(http), "--ops-port", str(ops)


def pods_of(servers):
    return [RunningPod(f"pod-{n}", server.http[1], server.ops[1]) for n, server in enumerate(servers)]


@contextlib.asynccontextmanager
async def front(servers):
    """A gateway that routes to them, and has read both: before, all prompts go to the one that it has read."""
    async with gateway() as running:
        running.objects.serve("paced", *pods_of(servers))
        key = {"authorization": "Bearer key-of-a"}
        one = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "headers": key}
        await until(lambda: has_read(running, "paced", len(servers), **one), "both were read")
        yield running


def client_of(running, key="key-of-a"):
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


def talk(number):
    return [{"role": "system", "content": f"{number} {SYSTEM}"}, {"role": "user", "content": "a question " * 30}]


def next_turn(messages, number):
    asked = {"role": "user", "content": f"and {number} more " * 20}
    return [*messages, {"role": "assistant", "content": "an answer"}, asked]


async def ask(running, client, messages):
    """Which process answered, and whether most of the prompt was in its cache. The next one is chosen once this one
    has ended for the gateway too, whose client may have its answer before."""
    made = await client.chat.completions.create(model="paced", messages=messages, max_tokens=1, temperature=0)

    async def has_ended():
        return await running.inflight("paced") == 0

    await until(has_ended, "the request has ended")
    cached = made.usage.prompt_tokens_details.cached_tokens or 0
    return made.id.removeprefix("chatcmpl-")[:8], 2 * cached > made.usage.prompt_tokens


async def test_every_turn_of_a_conversation_goes_where_it_is_cached(servers):
    async with front(servers) as running, client_of(running) as client:
        talks = [talk(number) for number in range(4)]
        homes = [(await ask(running, client, messages))[0] for messages in talks]
        assert len(set(homes)) == 2, "cold prompts take turns"
        for turn in range(2):
            talks = [next_turn(messages, turn) for messages in talks]
            assert [await ask(running, client, messages) for messages in talks] == [(home, True) for home in homes]
        await running.stop_picker()
        running.start_picker()
        await until(running.is_ready, "the new picker is ready")
        for messages, home in zip(talks, homes, strict=True):

            async def is_known(messages=messages, home=home):
                return await ask(running, client, messages) == (home, True)

            await until(is_known, "the new picker knows what each replica holds")


async def test_tenants_with_one_text_find_their_own_prefixes_alone(servers):
    async with front(servers) as running, client_of(running) as a, client_of(running, "key-of-b") as b:
        messages = talk("both")
        home_a, cached_a = await ask(running, a, messages)
        home_b, cached_b = await ask(running, b, messages)
        assert (cached_a, cached_b) == (False, False)
        assert home_a != home_b, "the prefix of one tenant draws no other one, so cold prompts take turns"
        for _ in range(2):
            assert await ask(running, a, messages) == (home_a, True)
            assert await ask(running, b, messages) == (home_b, True)


async def test_a_stored_response_is_found_by_its_id_through_the_service_that_made_it(servers):
    async with front(servers) as running, client_of(running) as client:
        running.objects.serve("other", *pods_of(servers))
        await ask(running, client, talk("stored"))
        made = await client.responses.create(model="paced", input="x", max_output_tokens=1)

        async def status(expected=200):
            url = f"{running.url}/v1/responses/{made.id}"
            async with running.client.get(url, headers=client.auth_headers) as answer:
                return answer.status == expected

        async def other_is_reached():
            return (await running.post("default/other"))[0] == 401

        async def service_is_gone():
            return (await running.post("default/paced"))[0] == 404

        await until(status, "its pod was read")
        await until(other_is_reached, "the other service with these pods")
        running.objects.drop("paced")
        await until(service_is_gone, "the service is gone")
        assert await status(404)


async def test_a_killed_replica_is_credited_nothing_and_its_successor_neither(servers, model):
    async with front(servers) as running, client_of(running) as client:
        messages = talk("killed")
        home, _ = await ask(running, client, messages)
        instances = [server.state()["instance"][:8] for server in servers]
        dead, alive = servers[instances.index(home)], instances[1 - instances.index(home)]
        dead.signal(signal.SIGKILL)
        dead.wait()

        async def is_answered_elsewhere():
            try:
                return (await ask(running, client, messages))[0] == alive
            except openai.APIStatusError:
                return False

        await until(is_answered_elsewhere, "the other replica answers")
        with api_process(model, *ARGS, *at_ports(dead.http[1], dead.ops[1]), command=FAKE) as again:
            instance = again.state()["instance"][:8]

            async def takes_requests():
                with contextlib.suppress(openai.APIStatusError):
                    return (await ask(running, client, talk(time.monotonic_ns())))[0] == instance
                return False

            await until(takes_requests, "the successor gets prompts that no replica holds")
            assert [await ask(running, client, messages) for _ in range(4)] == [(alive, True)] * 4
