"""The commands for people against a real server of the demo's model: chat, bench, generate, and their failures."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.api_process import ApiProcess, api_process
from kvasir_runtime.commands.generate import CHAT_NOTE

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "operator/kvasir_local/demo/model"
RUNTIME = (sys.executable, "-m", "kvasir_runtime")
QUESTION = "What is Kvasir?"

pytestmark = pytest.mark.xdist_group("commands")  # its server is shared by the tests of this file


@pytest.fixture(scope="module")
def server():
    args = ("--kv-cache-tokens", "32768", "--device", "cpu", "--dtype", "float32", "--api-key", "k")
    command = (*RUNTIME, "serve")
    with api_process(MODEL, *args, "--served-model-name", "demo", command=command) as running:
        yield running


def run(*args, said="", key="k", timeout=60):
    env = {**os.environ, "OPENAI_API_KEY": key, "OMP_NUM_THREADS": "1"}
    command = [*RUNTIME, *map(str, args)]
    return subprocess.run(command, input=said, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def url(server: ApiProcess) -> str:
    return server.base_url.removesuffix("/v1")


def test_a_chat_from_standard_input_prints_only_answers(server):
    said = f"{QUESTION}\n/reset\n{QUESTION}\n/nothing\n"
    done = run("chat", "--url", url(server), "--temperature", "0", "--max-tokens", "40", said=said)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == second
    assert len(first.split()) > 3
    asked = server.ask(
        "/v1/chat/completions",
        {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40},
        headers={"content-type": "application/json", "authorization": "Bearer k"},
    )
    assert asked.json["choices"][0]["message"]["content"].rstrip() == first.rstrip()


def test_a_chat_that_is_refused_says_why_and_fails(server):
    wrong = run("chat", "--url", url(server), key="wrong", said=QUESTION)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("kvasir: 401: A valid API key is needed")
    other = run("chat", "--url", server.base_url, "--model", "nobody", said=f"{QUESTION}\n")
    assert other.returncode == 1
    assert "kvasir: 404: The model `nobody` does not exist here." in other.stderr
    nobody = run("chat", "--url", "http://127.0.0.1:1", said=QUESTION)
    assert re.match(r"kvasir: http://127.0.0.1:1/v1 cannot be reached: .*refused", nobody.stderr)
    assert run("chat").returncode == 2


def test_a_chat_on_a_terminal_streams_stops_and_leaves(server):
    ours, theirs = pty.openpty()
    command = [*RUNTIME, "chat", "--url", url(server), "--model", "demo", "--temperature", "0"]
    env = {**os.environ, "OPENAI_API_KEY": "k", "TERM": "dumb"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""

    def until(words: bytes, again=lambda: None):
        nonlocal shown
        deadline = time.monotonic() + 60
        while words not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 4096)
            else:
                again()

    def waits() -> bool:
        """Not so where it is late with the answer to a signal, which another one would end."""
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("S")

    try:
        until(b"you")
        os.write(ours, QUESTION.encode() + b"\n")
        until(b"first piece after")
        os.write(ours, b"/help\n")
        until(b"ctrl-C stops an answer")
        # In the moment before the library waits for a key a signal is lost, so it may take another one.
        until(b"/exit or ctrl-D leaves", again=lambda: waits() and process.send_signal(signal.SIGINT))
        os.write(ours, b"/exit\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"bot" in shown
    assert b"demo at http://" in shown


@pytest.mark.parametrize("extra", [(), ("--chat",)], ids=["completions", "chats"])
def test_bench_counts_what_the_server_counts(server, tmp_path, extra):
    file = tmp_path / "figures.json"
    lengths = ("--prompt-tokens", "8-24", "--output-tokens", "4-12", "--shared-prefix", "64")
    done = run(
        "bench", "--url", url(server), "--requests", "12", "--concurrency", "4", *lengths, *extra, "--json", file
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 answered, 0 failed" in done.stdout
    assert "time to first token (TTFT)" in done.stdout
    figures = json.loads(file.read_text())
    assert figures["failed"] == figures["short"] == 0
    assert 12 * 4 <= figures["output_tokens"] <= 12 * 12
    assert figures["prompt_tokens"] > 12 * 72
    assert figures["cached_tokens"] > 0, "the prefix is shared"
    assert 0 < figures["ttft_s"]["median"] <= figures["e2e_s"]["maximum"] <= figures["wall_s"]
    assert len(figures["ttft_values_s"]) == 12


def test_bench_draws_and_says_what_fails(server):
    plotted = run("bench", "--url", url(server), "--workload", "w1", "--output-tokens", "2", "--plot")
    assert plotted.returncode == 0
    assert "time to first token [ms]" in plotted.stdout
    refused = run("bench", "--url", url(server), "--model", "nobody", "--requests", "2", "--warm-up", "0")
    assert refused.returncode == 1
    assert "0 answered, 2 failed" in refused.stdout
    assert "first failure: HTTP 404" in refused.stdout
    absent = run("bench", "--url", "http://127.0.0.1:1")
    assert absent.stderr == (
        "kvasir: http://127.0.0.1:1 lists no models: 127.0.0.1:1 cannot be reached: Connection refused\n"
    )
    assert run("bench", "--url", url(server), key="wrong").stderr.endswith("/models answers 401\n")
    assert run("bench", "--url", "127.0.0.1:1").returncode == 2


def test_generate_prints_the_answer_of_a_local_model():
    done = run("generate", "--chat", MODEL, "-", "--temperature", "0", "--max-tokens", "40", "--json", said=QUESTION)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["text"].split()) > 3
    assert document["finish_reason"] in {"stop", "length"}
    assert CHAT_NOTE not in done.stderr


def test_generate_on_a_chat_model_names_chat():
    done = run("generate", MODEL, "Once", "--max-tokens", "2", "--max-model-len", "64", "--kv-cache-tokens", "64")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"note: {CHAT_NOTE}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("./nowhere", "x"), 1, "kvasir: model directory ./nowhere does not exist\n"),
        ((str(MODEL), "x", "--max-model-len", "-1"), 2, "'--max-model-len': -1 is not in the range 0<=x<=16777216"),
        (
            (str(MODEL), "x", "--temperature", "9"),
            2,
            "'--temperature': 9.0 is not in the range 0<=x<=2\n",
        ),
    ],
)
def test_generate_fails_in_one_line(arguments, code, words):
    done = run("generate", *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["plan", "models", "generate", "chat", "bench", "serve"])
def test_help_is_quick_to_load_and_whole(name):
    program = (
        "import sys; sys.argv = ['kvasir', *sys.argv[1:]]\n"
        "from kvasir_runtime.__main__ import main\n"
        "main(standalone_mode=False)\n"
        "print('LOADED', sorted({'torch', 'fastapi', 'aiohttp', 'tokenizers', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, name, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: kvasir" in done.stdout
    assert done.stdout.endswith("LOADED []\n")
