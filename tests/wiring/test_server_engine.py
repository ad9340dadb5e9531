"""The real server with the real engine: on a fake runner for load and faults, on a tiny real model for what is said."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from fakes import checkpoints, file_server, ggufs, hub
from fakes.api_process import HERE, ApiProcess, api_process
from fakes.remote_files import packed
from kvasir_api.names import DEVICE_FAULT, ENV_MODEL_CACHE, ENV_MODEL_CACHE_READ_ONLY, EXIT_DEVICE, REFUSAL_PREFIX

FAKE = (sys.executable, str(HERE / "serve_fake.py"))
REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
PULL = (sys.executable, "-m", "kvasir_runtime", "pull")
MAX_LEN = 65_536
"""Of the fake model: an answer of so many tokens outlasts any pause of this process."""
PROMPT = "the operator watches the services and the engine reads a plan and answers with tokens "
HEAD = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "

pytestmark = pytest.mark.xdist_group("server-engine")  # its processes are shared by the tests of this file


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("endless", "poison", "ecc", "broken"):
        checkpoints.write(folder / name)
    return folder


@pytest.fixture(scope="module")
def fake(models):
    args = ("--max-model-len", str(MAX_LEN), "--kv-cache-tokens", "524288", "--max-sequences", "64")
    with api_process(models / "endless", *args, command=FAKE) as running:
        yield running


@pytest.fixture(scope="module")
def real(models):
    args = ("--kv-cache-tokens", "16384", "--device", "cpu", "--served-model-name", "tiny")
    with api_process(models / "endless", *args, command=REAL) as running:
        yield running


@pytest.fixture
def client(real):
    with openai.OpenAI(base_url=real.base_url, api_key="none", max_retries=0) as made:
        yield made


def kv(server: ApiProcess):
    state = server.state()["kv"]
    assert state["pinned_tokens"] + state["cached_tokens"] + state["free_tokens"] == state["capacity_tokens"]
    return state


async def test_32_streams_at_once_end_whole_and_leave_nothing_pinned(fake: ApiProcess):
    async with openai.AsyncOpenAI(base_url=fake.base_url, api_key="none", max_retries=0) as client:

        async def one(number: int) -> tuple[int, str]:
            stream = await client.completions.create(
                model="endless",
                prompt=[1 + number % 50, *range(1, 40)],
                max_tokens=100 + number,
                stream=True,
                stream_options={"include_usage": True},
            )
            text, reason, counted = "", "", 0
            async for chunk in stream:
                counted = chunk.usage.completion_tokens if chunk.usage else counted
                for choice in chunk.choices:
                    text += choice.text
                    reason = choice.finish_reason or reason
            assert counted == 100 + number
            return len(text), reason

        ended = await asyncio.gather(*(one(number) for number in range(32)))
    assert {reason for _, reason in ended} == {"length"}
    assert all(length > 20 for length, _ in ended)
    assert kv(fake)["cached_tokens"] > 0
    fake.until("nothing to be pinned", lambda: kv(fake)["pinned_tokens"] == 0)


def test_a_known_prefix_is_counted_as_cached(fake: ApiProcess):
    body = {"model": "endless", "prompt": [7] * 64 + [8], "max_tokens": 2}
    fake.ask("/v1/completions", body)
    again = fake.ask("/v1/completions", body).json["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == 64
    apart = fake.ask("/v1/completions", {**body, "cache_salt": "tenant"}).json["usage"]
    assert apart["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_client_that_hangs_up_frees_its_blocks(fake: ApiProcess):
    body = json.dumps({"model": "endless", "prompt": [5] * 20, "max_tokens": 60_000, "n": 8, "stream": True})
    aborts = fake.state()["totals"]["aborts"]
    with socket.create_connection(fake.http) as connection:
        connection.sendall(f"{HEAD}{len(body)}\r\n\r\n{body}".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    fake.until("its blocks to be free", lambda: kv(fake)["pinned_tokens"] == 0)
    assert fake.state()["totals"]["aborts"] > aborts


def test_a_request_that_can_never_fit_is_refused_by_its_numbers(fake: ApiProcess):
    answer = fake.ask("/v1/completions", {"model": "endless", "prompt": [5] * MAX_LEN, "max_tokens": 1})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


def test_a_step_that_fails_is_an_error_and_then_the_end(models):
    with api_process(models / "poison", command=FAKE) as server:
        body = {"model": "poison", "prompt": [5], "max_tokens": 5}
        assert server.ask("/v1/completions", body).status in {500, 503}
        while server.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                server.ask("/v1/completions", body)
        assert server.wait() == 1
        assert "steps failed in a row" in server.output()


def test_a_failed_device_is_named_in_the_last_words(models):
    with api_process(models / "ecc", "--log-format", "json", command=FAKE) as server:
        while server.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                server.ask("/v1/completions", {"model": "ecc", "prompt": [5], "max_tokens": 5})
        assert server.wait() == EXIT_DEVICE
        (line,) = [line for line in server.output().splitlines() if line.startswith(REFUSAL_PREFIX)]
        assert line.startswith(f"{REFUSAL_PREFIX}{DEVICE_FAULT}3 steps failed in a row")
        assert line.endswith("uncorrectable ECC error encountered")


def test_a_killed_engine_ends_streams_with_an_error(models):
    with api_process(
        models / "endless", "--max-model-len", "100000", "--kv-cache-tokens", "65536", command=FAKE
    ) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            stream = client.completions.create(model="endless", prompt=[1, 2], max_tokens=60_000, stream=True)
            next(stream)
            os.kill(server.engine_pid, signal.SIGKILL)
            with pytest.raises(openai.APIError, match="SIGKILL"):
                for _ in stream:
                    pass
        assert server.wait() == 1


def test_a_model_that_the_engine_refuses_ends_the_process(models):
    with api_process(models / "broken", command=FAKE, wait="nothing") as server:
        assert server.wait() == 1
        assert f"{REFUSAL_PREFIX}model broken: config.json is missing\n" in server.output()
        assert "Traceback" not in server.output()


def test_sigterm_lets_running_answers_end(models):
    with api_process(models / "endless", "--max-model-len", "4096", command=FAKE) as server:
        body = json.dumps({"model": "endless", "prompt": [5] * 20, "max_tokens": 3000, "stream": True})
        with socket.create_connection(server.http) as connection:
            connection.sendall(f"{HEAD}{len(body)}\r\n\r\n{body}".encode())
            received = connection.recv(1000)
            server.signal()
            while part := connection.recv(1 << 16):
                received += part
        assert b'"finish_reason":"length"' in received
        assert b"data: [DONE]" in received
        assert server.wait() == 0


def test_the_api_process_never_maps_torch_and_the_engine_does(real: ApiProcess):
    assert "libtorch" not in Path(f"/proc/{real.process.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{real.engine_pid}/maps").read_text()


def test_the_banner_tells_what_serves(real: ApiProcess):
    banner = real.output().partition("Kvasir is ready")[2]
    assert re.search(r"model +tiny \(/", banner)
    assert re.search(r"device +cpu", banner)
    assert "float32" in banner
    assert "16,384 tokens in blocks of 16" in banner
    assert re.search(r"ready in +[\d.]+ s \(find", banner)


def test_slower_kernels_are_told_with_their_reason(models: Path):
    args = ("--kv-cache-tokens", "1024", "--device", "cpu")
    with api_process(models / "endless", *args, command=REAL, env={"KVASIR_KERNELS": "torch"}) as running:
        said = running.until("the engine spoke", lambda: (found := running.state())["kernels"] and found)
        assert (said["kernels"], said["fallback"]) == ("cpu", "KVASIR_KERNELS=torch")
        assert re.search(r"cpu kernels \(KVASIR_KERNELS=torch\),", running.output())


def test_greedy_answers_are_the_same_streamed_whole_and_as_token_ids(real, client):
    kwargs = {"model": "tiny", "max_tokens": 40, "temperature": 0, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(prompt=PROMPT, **kwargs)
    assert whole.usage.completion_tokens == 40
    streamed = "".join(
        chunk.choices[0].text for chunk in client.completions.create(prompt=PROMPT, stream=True, **kwargs)
    )
    assert streamed == whole.choices[0].text
    again = client.completions.create(prompt=PROMPT, **kwargs)
    assert again.choices[0].text == whole.choices[0].text
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_work_is_counted_by_the_sizes_of_the_model(real, client):
    before = real.state()["work"]
    done = client.completions.create(model="tiny", prompt=[7] * 64, max_tokens=64, extra_body={"ignore_eos": True})
    assert done.usage.completion_tokens == 64
    work = real.state()["work"]
    config = json.loads((Path(real.process.args[real.process.args.index("serve") + 1]) / "config.json").read_text())
    matrices = config["num_hidden_layers"] * 3 * config["hidden_size"] * config["intermediate_size"]
    head = config["vocab_size"] * config["hidden_size"]
    assert work["flops"] - before["flops"] > 2 * (127 * matrices + 64 * head)
    assert work["read_bytes"] - before["read_bytes"] > 64 * 4 * (matrices + head)
    assert work["seconds"] > before["seconds"]


def test_seeds_decide_what_is_drawn(client):
    def drawn(seed, **extra):
        made = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "plan"}],
            max_tokens=24,
            temperature=1,
            seed=seed,
            extra_body={"ignore_eos": True, **extra},
            n=2,
        )
        return [choice.message.content for choice in made.choices]

    first = drawn(1)
    assert first == drawn(1)
    assert first != drawn(2)
    assert first[0] != first[1]
    assert drawn(1, top_k=1) == [drawn(9, top_k=1)[0]] * 2, "only the likeliest is left"


def test_lengths_and_stops_reach_the_engine(client):
    kwargs = {"model": "tiny", "prompt": PROMPT, "temperature": 0}
    ids = range(320)
    short = client.completions.create(max_tokens=30, extra_body={"stop_token_ids": list(ids)[:128]}, **kwargs)
    free = client.completions.create(max_tokens=30, extra_body={"ignore_eos": True}, **kwargs)
    assert free.usage.completion_tokens == 30
    assert short.usage.completion_tokens <= 30
    held = client.completions.create(max_tokens=30, extra_body={"min_tokens": 25}, **kwargs)
    assert held.usage.completion_tokens >= 25
    text = free.choices[0].text
    cut = client.completions.create(max_tokens=30, stop=text[5:8], extra_body={"ignore_eos": True}, **kwargs)
    assert cut.choices[0].text == text[: text.index(text[5:8])]
    assert cut.choices[0].finish_reason == "stop"


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> dict[str, dict[str, bytes]]:
    """Files of a model on a hub, by the name of those that the hub sends slowly or damaged."""
    made = tmp_path_factory.mktemp("published")
    one, sharded = checkpoints.write(made / "one"), checkpoints.write(made / "sharded", num_shards=3)
    file = ggufs.write(one, made / "tiny.gguf", kind="Q8_0")
    of = {folder: {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (one, sharded)}
    last = "model-00003-of-00003.safetensors"
    return {"model.safetensors": of[one], last: of[sharded], file.name: {file.name: file.read_bytes()}}


WEIGHTS = ["model.safetensors", "model-00003-of-00003.safetensors", "tiny.gguf"]


def named(weights: str) -> Path:
    return Path("org/name") / weights if weights.endswith(".gguf") else Path("org/name")


def fetching(found: hub.Hub, home: Path, wait: str = "listening"):
    """A start that fetches its model. Its log says at once that the ports are open."""
    json_log = ("--log-format", "json")
    return api_process(named(found.weights), *json_log, command=REAL, env=found.env(home), wait=wait)


def served_text(model: Path) -> str:
    """What a server says that fetches nothing."""
    with api_process(model, command=REAL) as server:
        said = server.ask("/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}).json
    return said["choices"][0]["text"]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_engine_loads_what_is_there_while_the_rest_comes(tmp_path, published, weights):
    files = published[weights]
    with hub.serving("trickles", files, held=True) as found:
        found.weights, found.at_once = weights, len(files[weights]) * 3 // 4
        with fetching(found, tmp_path) as server:
            server.until("it loads", lambda: server.state()["phase"] == "loading")
            server.until("half is read", lambda: server.state()["progress_fraction"] > 0.3)
            server.until("bytes are counted", lambda: server.state()["downloaded_bytes"])  # twice a second
            state = server.state()
            assert state["phase"] == "loading"
            assert state["downloaded_bytes"] < state["download_bytes"]
            said = server.ask("/startupz", ops=True).json
            assert state["downloaded_bytes"] <= said["downloaded_bytes"] < said["download_bytes"]
            assert said["download_bytes"] == state["download_bytes"] == sum(map(len, files.values()))
            found.open.set()
            server.wait_ready()
            assert server.ask("/v1/models").json["data"][0]["id"] == named(weights).stem
            for document in (server.state(), server.ask("/startupz", ops=True).json):
                assert document["downloaded_bytes"] == document["download_bytes"] == said["download_bytes"]


@pytest.fixture(scope="module")
def archived(tmp_path_factory) -> tuple[Path, str]:
    """A model of weights of several reads, and what it says."""
    folder = checkpoints.write(tmp_path_factory.mktemp("archived") / "made", checkpoints.Shape(intermediate_size=4096))
    return folder, served_text(folder)


@pytest.mark.parametrize("is_read_only", [False, True], ids=["layers of an image", "a cache that another pod fills"])
def test_an_engine_loads_archives_while_they_come(tmp_path, archived, is_read_only):
    """The config, weights of several reads, then what is read when all is there."""
    folder, text = archived
    rest = {path.name: path.read_bytes() for path in folder.iterdir()}
    files = {name: rest.pop(name) for name in ("config.json", "model.safetensors")}
    layers = [packed({"config.json": files["config.json"]}), packed(files | rest)]
    size = sum(map(len, layers))
    with file_server.serving(fault="held", at_once=len(layers[-1]) * 3 // 4) as found, contextlib.ExitStack() as stack:
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        pushed = [found.layer("org/name", layer, kind) for layer in layers]
        found.push("org/name", "v1", {"schemaVersion": 2, "layers": pushed})
        env, uri = {ENV_MODEL_CACHE: str(tmp_path / "cache")}, f"oci://{found.url.removeprefix('http://')}/org/name:v1"
        if is_read_only:
            (tmp_path / "cache").mkdir()
            pull = [*PULL, "--record", env[ENV_MODEL_CACHE], uri]
            pulling = stack.enter_context(subprocess.Popen(pull, env=os.environ | env, stdout=subprocess.DEVNULL))
            stack.callback(pulling.kill)
            env = {ENV_MODEL_CACHE_READ_ONLY: env[ENV_MODEL_CACHE]}
        with api_process(uri, "--log-format", "json", command=REAL, env=env, wait="listening") as server:
            server.until("it loads", lambda: server.state()["phase"] == "loading")
            server.until("half is read", lambda: server.state()["progress_fraction"] > 0.3)
            state = server.until("bytes are counted", lambda: (at := server.state())["downloaded_bytes"] and at)
            assert (state["phase"], state["download_bytes"]) == ("loading", size)
            assert state["downloaded_bytes"] < size
            found.open.set()
            server.wait_ready()
            given = server.ask("/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}).json
            assert server.state()["downloaded_bytes"] == size
        assert [found.parts(f"/v2/org/name/blobs/{layer['digest']}") for layer in pushed] == [[""], [""]]
    assert given["choices"][0]["text"] == text


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("fault", ["cut once", "damaged once"])
def test_an_engine_serves_what_came_with_its_checksum(tmp_path, published, weights, fault):
    """Of a file that came otherwise first, all is read once more."""
    whole = tmp_path / "whole"
    whole.mkdir()
    for name, content in published[weights].items():
        (whole / name).write_bytes(content)
    with hub.serving(fault, published[weights]) as found:
        found.weights, found.damaged, found.times = weights, len(published[weights][weights]) // 2, 2
        with fetching(found, tmp_path) as server:
            server.wait_ready()
            given = server.ask("/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}).json
        asked = [path for path in found.of("GET") if path.endswith(weights)]
    assert given["choices"][0]["text"] == served_text(whole / weights if weights.endswith(".gguf") else whole)
    assert len(asked) == 3, "for its header, and twice for the rest"


@pytest.mark.parametrize("weights", ["model.safetensors", "tiny.gguf"])
def test_an_engine_that_has_read_a_lie_serves_nothing(tmp_path, published, weights):
    with hub.serving("damaged always", published[weights]) as found:
        found.weights = weights
        with fetching(found, tmp_path, wait="nothing") as server:
            assert server.wait() == 1
            assert f"comes with another checksum of {weights} than was stated, fetched twice" in server.output()


def test_an_engine_loads_once_more_where_a_header_was_damaged_on_its_way(tmp_path):
    """Headers come ahead and without a checksum; the shard itself is right."""
    folder = checkpoints.write(tmp_path / "tiny", num_shards=3)
    files, second = {path.name: path.read_bytes() for path in folder.iterdir()}, "model-00002-of-00003.safetensors"
    with hub.serving("damaged once", files) as found:
        found.weights, found.damaged = second, files[second].index(b"weight")
        json_log = ("--log-format", "json")  # says at once that the ports are open
        with api_process(Path("org/name"), *json_log, command=REAL, env=found.env(tmp_path)):
            assert len([path for path in found.of("GET") if path.endswith(second)]) == 2


def test_a_download_that_fails_is_told_and_not_what_its_header_does_to_the_engine(tmp_path):
    folder = checkpoints.write(tmp_path / "tiny", num_shards=3)
    files, second = {path.name: path.read_bytes() for path in folder.iterdir()}, "model-00002-of-00003.safetensors"
    with hub.serving("damaged always", files) as found:
        found.weights, found.damaged = second, files[second].index(b"weight")
        with api_process(Path("org/name"), command=REAL, env=found.env(tmp_path), wait="nothing") as server:
            assert server.wait() == 1
            assert f"another checksum of {second} than was stated" in server.output()
