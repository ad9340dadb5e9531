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
from kvasir_api import names

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
    """Two, which start at the same time."""
    with contextlib.ExitStack() as stack:
        env = {names.ENV_SERVICE: "default/paced"}
        started = [
            stack.enter_context(api_process(model, *ARGS, command=FAKE, env=env, wait="listening")) for _ in range(2)
        ]
        for server in started:
            server.wait_ready()
        yield started


def pods_of(servers):
    return [RunningPod(f"pod-{n}", server.http[1], server.ops[1]) for n, server in enumerate(servers)]


@contextlib.asynccontextmanager
async def front(servers):
    """A gateway that routes to them."""
    async with gateway() as running:
        running.objects.serve("paced", *pods_of(servers))

        async def routes():
            async with running.client.get(f"{running.url}/v1/models") as answer:
                return "paced" in await answer.text()

        await until(routes, "the service is known")
        yield running


def client_of(running, key="key-of-a"):
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


def talk(number):
    return [{"role": "system", "content": f"{number} {SYSTEM}"}, {"role": "user", "content": "a question " * 30}]


def next_turn(messages, number):
    asked = {"role": "user", "content": f"and {number} more " * 20}
    return [*messages, {"role": "assistant", "content": "an answer"}, asked]


async def ask(client, messages):
    """Which process answered, and whether most of the prompt was in its cache; of a gateway that knows its pods."""
    made = await client.chat.completions.create(model="paced", messages=messages, max_tokens=1, temperature=0)
    cached = made.usage.prompt_tokens_details.cached_tokens or 0
    return made.id.removeprefix("chatcmpl-")[:8], 2 * cached > made.usage.prompt_tokens


async def first(client, messages):
    """The same while the gateway may not have read its pods yet."""
    found = []

    async def answered():
        with contextlib.suppress(openai.APIStatusError):
            found.append(await ask(client, messages))
        return bool(found)

    await until(answered, "the first request is answered")
    return found[0]


async def test_every_turn_of_a_conversation_goes_where_it_is_cached(servers):
    async with front(servers) as running, client_of(running) as client:
        talks = [talk(number) for number in range(4)]
        homes = [(await first(client, messages))[0] for messages in talks]
        assert len(set(homes)) == 2, "cold prompts take turns"
        for turn in range(2):
            talks = [next_turn(messages, turn) for messages in talks]
            assert [await ask(client, messages) for messages in talks] == [(home, True) for home in homes]
        await running.stop_picker()
        running.start_picker()
        await until(running.is_ready, "the new picker is ready")
        for messages, home in zip(talks, homes, strict=True):

            async def is_known(messages=messages, home=home):
                return await ask(client, messages) == (home, True)

            await until(is_known, "the new picker knows what each replica holds")


async def test_tenants_with_one_text_find_their_own_prefixes_alone(servers):
    async with front(servers) as running, client_of(running) as a, client_of(running, "key-of-b") as b:
        messages = talk("both")
        home_a, cached_a = await first(a, messages)
        home_b, cached_b = await ask(b, messages)
        assert (cached_a, cached_b) == (False, False)
        assert home_a != home_b, "the prefix of one tenant draws no other one, so cold prompts take turns"
        for _ in range(2):
            assert await ask(a, messages) == (home_a, True)
            assert await ask(b, messages) == (home_b, True)


async def test_a_stored_response_is_found_by_its_id_through_the_service_that_made_it(servers):
    async with front(servers) as running, client_of(running) as client:
        running.objects.serve("other", *pods_of(servers))
        await first(client, talk("stored"))
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
        home, _ = await first(client, messages)
        instances = [server.state()["instance"][:8] for server in servers]
        dead, alive = servers[instances.index(home)], instances[1 - instances.index(home)]
        dead.signal(signal.SIGKILL)
        dead.wait()

        async def is_answered_elsewhere():
            try:
                return (await ask(client, messages))[0] == alive
            except openai.APIStatusError:
                return False

        await until(is_answered_elsewhere, "the other replica answers")
        ports = ("--port", str(dead.http[1]), "--ops-port", str(dead.ops[1]))
        with api_process(model, *ARGS, *ports, command=FAKE) as again:
            instance = again.state()["instance"][:8]

            async def takes_requests():
                number = time.monotonic_ns()
                return (await ask(client, talk(number)))[0] == instance

            await until(takes_requests, "the successor gets prompts that no replica holds")
            assert [await ask(client, messages) for _ in range(4)] == [(alive, True)] * 4
