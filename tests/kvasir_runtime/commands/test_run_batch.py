"""A file of requests: each answered in order, what is none refused with its reason, by either kind of server."""

import asyncio
import importlib
import io
import json
import os
import subprocess
import sys

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from fakes import checkpoints
from fakes.api_process import api_process
from kvasir_runtime.commands.run_batch import run_batch

run_batches = importlib.import_module("kvasir_runtime.commands.run_batch")


def line(custom_id, url, body, **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more})


LINES = [
    line("a", "/v1/completions", {"prompt": "hello", "max_tokens": 2}),
    line("b", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    line("c", "/v1/completions", {"prompt": "x", "temperature": "hot"}),
    "",
    "{",
    line("d", "/v1/completions", {"prompt": "x", "stream": True}),
    line("e", "/v1/completions", {"prompt": "x"}, method="GET"),
    line("f", "/v1/nothing", {}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")


async def asked(*lines):
    """What a server is sent of some lines."""
    sent = []

    async def answer(request):
        sent.append((request.path, await request.json()))
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server:
        source, sink = io.StringIO("\n".join(lines)), io.StringIO()
        assert await run_batches._answer(source, sink, str(server.make_url("")).rstrip("/"), "", 1) == 0
    return sent


@pytest.mark.parametrize("stream", [{}, {"stream": None}, {"stream": False}])
def test_answers_of_ollama_come_in_one_piece(stream):
    """They are streams unless a request says otherwise."""
    sent = asyncio.run(asked(line("a", "/api/chat", {"model": "m", **stream}), line("b", "/v1/completions", {})))
    assert sent == [("/api/chat", {"model": "m", "stream": False}), ("/v1/completions", {})]


@pytest.mark.parametrize(
    ("own", "keys", "want"),
    [
        (True, {"KVASIR_API_KEY": "a,b", "OPENAI_API_KEY": "c"}, "a"),
        (True, {"OPENAI_API_KEY": "c"}, "c"),
        (False, {"KVASIR_API_KEY": "a", "OPENAI_API_KEY": "c"}, "c"),
        (False, {"KVASIR_API_KEY": "a"}, ""),
    ],
)
def test_a_server_of_its_own_is_sent_a_key_that_it_accepts(own, keys, want, monkeypatch):
    for name in ("KVASIR_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    assert run_batches._usual_key(own=own) == want


def check(found):
    outcomes = [(one["custom_id"], one["response"] and one["response"]["status_code"], one["error"]) for one in found]
    assert [(name, status) for name, status, error in outcomes if error is None] == [
        ("a", 200), ("b", 200), ("c", 400), ("f", 404)
    ]  # fmt: skip
    refused = [(name, error["code"]) for name, _, error in outcomes if error]
    assert refused == [(name, "invalid_request") for name in (None, "d", "e")]
    assert found[0]["response"]["body"]["object"] == "text_completion"
    assert found[2]["response"]["body"]["error"]["param"] == "temperature"


def test_a_server_behind_a_url_is_asked(folder, tmp_path):
    (tmp_path / "in").write_text("\n".join(LINES))
    with api_process(folder) as server:
        arguments = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--url", server.base_url]
        result = CliRunner().invoke(run_batch, [*arguments, "--concurrency", "2"])
    assert result.exit_code == 1, result.output
    check([json.loads(one) for one in (tmp_path / "out").read_text().splitlines()])


def test_a_server_of_its_own_is_started_and_ended(folder, tmp_path):
    (tmp_path / "in").write_text(LINES[0])
    command = [sys.executable, "-m", "kvasir_runtime", "run-batch", "-i", tmp_path / "in", "-o", tmp_path / "out"]
    environment = {**os.environ, "KVASIR_API_KEY": "a key,another"}
    subprocess.run([*command, "--model", folder, "--max-model-len", "256"], check=True, timeout=120, env=environment)
    (found,) = [json.loads(one) for one in (tmp_path / "out").read_text().splitlines()]
    assert (found["custom_id"], found["response"]["status_code"]) == ("a", 200)


def test_a_server_that_does_not_start_is_an_error_with_its_reason(tmp_path):
    (tmp_path / "in").write_text(LINES[0])
    arguments = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--model", str(tmp_path / "none")]
    result = CliRunner().invoke(run_batch, arguments)
    assert result.exit_code == 1
    assert "none" in result.output


@pytest.mark.parametrize("arguments", [[], ["--model", "a", "--url", "http://b"]])
def test_either_a_model_or_a_url_is_needed(tmp_path, arguments):
    (tmp_path / "in").write_text("")
    result = CliRunner().invoke(run_batch, ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2
    assert "either --model or --url" in result.output
