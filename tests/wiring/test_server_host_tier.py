"""A real server whose cache has a second tier: a pod that was killed finds its prefixes again, until told to forget."""

import os
import signal
import sys

import pytest

from fakes import checkpoints
from fakes.api_process import api_process

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
PROMPT = "the operator watches the services and the engine reads a plan and answers with tokens " * 8

pytestmark = pytest.mark.xdist_group("server-host-tier")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")


def args(folder):
    return (
        *("--kv-cache-tokens", "2048", "--device", "cpu", "--served-model-name", "tiny"),
        *("--kv-host-bytes", "20000000", "--kv-host-dir", str(folder)),
    )


def asked(server, prompt=PROMPT):
    """An answer's text, and how many tokens of its prompt were not computed."""
    with server.strict_openai() as client:
        made = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0)
    return made.choices[0].text, made.usage.prompt_tokens_details.cached_tokens


def stored(server):
    return server.state()["kv_host"]["stored_tokens"]


def test_a_killed_pod_finds_its_prefixes_again_and_forgets_them_when_told(model, tmp_path):
    with api_process(model, *args(tmp_path / "kv"), command=REAL) as server:
        text, cached = asked(server)
        assert cached == 0
        server.until("blocks are on the host", lambda: stored(server) > 200)
        state = server.state()["kv_host"]
        assert state["cached_tokens"] + state["free_tokens"] == state["capacity_tokens"]
        assert b"kvasir_kv_host_stored_tokens_total" in server.ask("/metrics").body
        os.kill(server.engine_pid, signal.SIGKILL)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    (file,) = (tmp_path / "kv").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    with api_process(model, *args(tmp_path / "kv"), command=REAL) as server:
        again, cached = asked(server)
        assert again == text
        assert cached > 200
        assert server.state()["kv_host"]["loaded_tokens"] == cached
        assert server.ask("/reset_prefix_cache").status == 404, "clients cannot erase it"
        assert server.ask("/reset_prefix_cache", ops=True, method="POST").json == {"reset": True}
        server.until("nothing is left", lambda: server.state()["kv_host"]["cached_tokens"] == 0)
        assert asked(server) == (text, 0)


def test_two_replicas_find_what_the_other_computed_while_both_run(model, tmp_path):
    other = "what follows was never said to the first of them " * 12
    with (
        api_process(model, *args(tmp_path), command=REAL) as first,
        api_process(model, *args(tmp_path), command=REAL) as second,
    ):
        text, cached = asked(first)
        assert cached == 0
        first.until("blocks are on the host", lambda: stored(first) > 200)
        again, cached = asked(second)
        assert again == text
        assert cached > 200
        text, cached = asked(second, other)
        assert cached == 0
        second.until("blocks are on the host", lambda: stored(second) > 100)
        again, cached = asked(first, other)
        assert again == text
        assert cached > 100


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--kv-host-bytes", "5000"), "does not hold one block of"),
        (("--kv-host-bytes", "20000000", "--no-prefix-cache"), "kvHostBytes needs prefixCache"),
        (("--kv-host-bytes", "20000000", "--kv-host-dir", "{model}/config.json/x"), "Not a directory"),
    ],
)
def test_a_tier_that_cannot_be_is_refused_with_the_reason(model, tmp_path, options, why):
    given = [option.format(model=model) for option in options]
    if "--kv-host-dir" not in given:
        given += ["--kv-host-dir", str(tmp_path)]
    with api_process(
        model, "--kv-cache-tokens", "2048", "--device", "cpu", *given, command=REAL, wait="nothing"
    ) as server:
        assert server.process.wait(60) != 0
        assert why in server.output()
