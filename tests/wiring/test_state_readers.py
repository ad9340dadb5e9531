"""Readers of a real server's /state: the set of prefixes that they follow is that of the engine's cache."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from fakes import checkpoints
from fakes.api_process import HERE, api_process
from fakes.guides import ROOT, blocks
from kvasir_api import hashes
from kvasir_api.prefix_digest import WHOLE, FollowedPrefixes
from kvasir_kube.state_reader import StateReader

FAKE = (sys.executable, str(HERE / "serve_fake.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("model") / "endless")


def prompt(number):
    return f"{number:03} " + "the engine reads a plan and answers with tokens " * 12


def routes(number):
    return set(hashes.route_hashes(prompt(number), model="endless"))


def complete(server, number):
    body = {"model": "endless", "prompt": prompt(number), "max_tokens": 2}
    answer = server.ask("/v1/completions", body)
    assert answer.status == 200, answer.body


async def read(server, followed):
    """One reading of a pod that answers."""
    base = f"http://{server.ops[0]}:{server.ops[1]}"
    async with StateReader() as reader:
        return (await reader.states({"pod": base}, deadline_s=30.0, prefixes={"pod": followed}))["pod"]


async def settled(server, followed):
    """The reading after everything that was answered so far is known to the API process."""
    server.until("nothing runs", lambda: server.state()["running"] == 0)
    return await read(server, followed)


async def test_a_reader_knows_what_a_small_cache_still_holds(model):
    args = ("--kv-cache-tokens", "2048", "--max-model-len", "1024")
    with api_process(model, *args, command=FAKE) as server:
        often, seldom = FollowedPrefixes(), FollowedPrefixes()
        first = await read(server, seldom)
        assert (first.prefixes.after, first.prefixes.entries, seldom.hashes) == (WHOLE, 0, set())
        for number in range(12):
            complete(server, number)
            reading = await settled(server, often)
            assert routes(number) <= often.hashes
            assert reading.prefixes.entries == len(often.hashes)
        last = await settled(server, seldom)
        assert seldom.hashes == often.hashes
        assert (last.instance, last.prefixes.sequence) == (seldom.instance, seldom.after)
        assert not routes(0) & often.hashes, "a prompt that was evicted is no member"
        assert routes(11) <= seldom.hashes
        plain = server.state()["prefixes"]
        assert (plain["after"], plain["added"], plain["removed"]) == (plain["sequence"], "", "")
        assert last.sequence_number > first.sequence_number
    with api_process(model, *args, command=FAKE) as server:
        complete(server, 5)
        again = await settled(server, often)
        assert again.instance != last.instance
        assert often.hashes == routes(5)


async def test_what_is_forgotten_leaves_the_set_and_a_number_that_is_none_is_refused(model):
    with api_process(model, "--kv-cache-tokens", "4096", "--max-model-len", "1024", command=FAKE) as server:
        followed = FollowedPrefixes()
        complete(server, 1)
        await settled(server, followed)
        assert followed.hashes == routes(1)
        assert server.ask("/reset_prefix_cache", {}, ops=True).status == 200
        server.until("it is forgotten", lambda: server.state()["prefixes"]["entries"] == 0)
        await read(server, followed)
        assert followed.hashes == set()
        for query in ("prefixes_after=x", "prefixes_after=-2", f"prefixes_after=1&instance={'a' * 99}"):
            assert server.ask(f"/state?{query}", ops=True).status == 422


def guided(server, *, tenant):
    """What the program of the guide on erasure prints, which its reader types behind `kubectl exec POD --`."""
    page = ROOT / "docs/guides/compliance.md"
    [typed] = [block.text for block in blocks(page) if block.text.startswith("python -c ")]
    program = shlex.split(typed)[2].replace("localhost:8001", f"localhost:{server.ops[1]}").replace("NAME", tenant)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tenants_are_charged_until_they_are_forgotten(model):
    """Two keys of one file, one of the options, on the engine's own loop and clock."""

    def charged(name):
        text = server.ask("/metrics").body.decode()
        found = re.findall(rf'^{name}{{model_name="endless",tenant="([^"]*)"}} (\S+)$', text, re.MULTILINE)
        return {tenant: float(value) for tenant, value in found}

    def asked(key, tokens):
        body = {"model": "endless", "prompt": [5] * 40, "max_tokens": tokens}
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        assert server.ask("/v1/completions", body, headers=headers).status == 200

    generated = "kvasir_tenant_generation_tokens_total"
    with api_process(model, "--api-key", "one", "--api-key", "two", "--max-model-len", "1024", command=FAKE) as server:
        asked("one", 20)
        asked("two", 30)
        asked("one", 5)
        want = {"api-key-1": 25.0, "api-key-2": 30.0}
        server.until("all is told", lambda: charged(generated) == want)
        assert charged("kvasir_tenant_prompt_tokens_total") == {"api-key-1": 80.0, "api-key-2": 40.0}
        assert charged("kvasir_tenant_prefix_hit_tokens_total") == {"api-key-1": 32.0, "api-key-2": 0.0}
        used = charged("kvasir_tenant_kv_token_seconds_total")
        assert all(value > 0 for value in used.values())
        assert guided(server, tenant="api-key-1") == {"reset": True}
        assert set(charged(generated)) == {"api-key-2"}
