"""Ollama's API through its official client: chats, generation, options, times, what it tells of the model, errors."""

import json

import ollama
import pytest

from fakes.checkpoints import CHAT_TEMPLATE
from fakes.scripted import scripted
from kvasir_api import __version__

ARGS = ("--max-model-len", "128", "--served-model-name", "tiny")
CHAT = [{"role": "user", "content": "the plan"}]
PROMPT = "<|im_start|>user\nthe plan<|im_end|>\n<|im_start|>assistant\n"

pytestmark = pytest.mark.xdist_group("server-ollama")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with scripted(tmp_path_factory.mktemp("ollama"), *ARGS, faults={"step_s": 0.002}) as running:
        yield running


@pytest.fixture
def client(engine):
    made = ollama.Client(engine.server.base_url.removesuffix("/v1"))
    yield made
    made._client.close()


def chat(client, **fields):
    return client.chat(**{"model": "tiny:latest", "messages": CHAT, **fields})


def test_a_whole_chat(engine, client):
    count = engine.says("the operator watches")
    answer = chat(client)
    assert engine.prompt() == PROMPT
    assert (answer.message.role, answer.message.content) == ("assistant", "the operator watches")
    assert (answer.model, answer.done, answer.done_reason) == ("tiny:latest", True, "stop")
    assert answer.prompt_eval_count == len(engine.heard()["prompt"])
    assert answer.eval_count == count + 1
    assert answer.created_at.endswith("Z")


def test_times_are_measured(engine, client):
    count = engine.says("the operator watches the services")
    answer = chat(client)
    assert answer.eval_duration >= (count - 2) * 2_000_000, "a step takes at least 2 ms"
    assert answer.total_duration >= answer.eval_duration + answer.prompt_eval_duration
    assert answer.prompt_eval_duration > 0
    assert answer.load_duration == 0


def test_a_chat_is_streamed_by_default_on_the_wire(engine, client):
    engine.says("the operator watches")
    lines = list(chat(client, stream=True))
    assert "".join(line.message.content for line in lines) == "the operator watches"
    assert len(lines) > 4
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].eval_count == chat(client).eval_count
    raw = engine.server.ask("/api/chat", {"model": "tiny", "messages": CHAT})
    assert raw.headers["content-type"] == "application/x-ndjson"
    documents = [json.loads(line) for line in raw.body.splitlines()]
    assert len(documents) == len(lines)
    assert all("done_reason" not in document for document in documents[:-1])


def test_generate_templates_its_prompt_unless_raw(engine, client):
    engine.says("x y")
    whole = client.generate("tiny", "the plan", system="be brief")
    assert whole.response == "x y"
    assert engine.prompt() == "<|im_start|>system\nbe brief<|im_end|>\n" + PROMPT
    assert "".join(line.response for line in client.generate("tiny", "the plan", stream=True)) == "x y"
    raw = client.generate("tiny", "the plan", raw=True)
    assert engine.prompt() == "the plan"
    assert (raw.response, raw.done_reason, raw.eval_count) == ("x y", "stop", whole.eval_count)


def test_an_answer_is_as_long_as_it_may(engine, client):
    engine.says("")
    assert chat(client, options={"num_predict": 3}).done_reason == "length"
    assert engine.heard()["sampling"]["max_tokens"] == 3
    chat(client, options={"num_predict": 100_000})
    everything = engine.heard()
    assert everything["sampling"]["max_tokens"] == 128 - len(everything["prompt"])
    for none in (-1, -2):
        chat(client, options={"num_predict": none})
        assert engine.heard()["sampling"]["max_tokens"] == everything["sampling"]["max_tokens"]
    client.generate("tiny", "a", raw=True)
    assert engine.heard()["sampling"]["max_tokens"] == 128 - len(engine.heard()["prompt"])


@pytest.mark.parametrize(
    ("options", "sampled"),
    [
        ({"temperature": 0.25}, {"temperature": 0.25}),
        ({"top_k": 7}, {"top_k": 7}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"min_p": 0.1}, {"min_p": 0.1}),
        ({"seed": 5}, {"seed": 5}),
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
        ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
        ({"num_gpu": 99, "num_thread": 3, "use_mmap": False, "num_ctx": 128, "mirostat": 0, "mirostat_tau": 5.0}, {}),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_options_reach_the_engine(engine, client, options, sampled, raw):
    engine.says("a")
    client.generate("tiny", "a", raw=raw)
    default = engine.heard()["sampling"]
    assert (default["temperature"], default["top_k"], default["top_p"]) == (0.8, 40, 0.9), "Ollama's defaults"
    client.generate("tiny", "a", raw=raw, options=options)
    changed = engine.heard()["sampling"]
    same = {"seed"} - sampled.keys()
    assert {k: v for k, v in changed.items() if v != default.get(k) and k not in same} == sampled


def test_the_models_own_defaults_go_before_ollamas(tmp_path):
    own = {"temperature": 0.5, "top_k": 5, "max_new_tokens": 7, "repetition_penalty": 1.25}
    with scripted(tmp_path, *ARGS, files={"generation_config.json": json.dumps(own)}) as engine:
        engine.says("a")

        def sampled(*, raw=False, **options):
            body = {"model": "tiny", "prompt": "a", "raw": raw, "options": options}
            assert engine.server.ask("/api/generate", body).status == 200
            found = engine.heard()["sampling"]
            return [found.get(name) for name in ("temperature", "top_k", "top_p", "max_tokens", "repetition_penalty")]

        assert sampled() == sampled(raw=True) == [0.5, 5, 0.9, 7, 1.25]
        assert sampled(temperature=0.0, num_predict=3, repeat_penalty=1.5) == [0.0, 5, 0.9, 3, 1.5]


def test_stop_ends_an_answer(engine, client):
    engine.says("the operator watches")
    answer = chat(client, options={"stop": ["zebra", " watch"]})
    assert (answer.message.content, answer.done_reason) == ("the operator", "stop")


def test_logprobs(engine, client):
    engine.says("a")
    chat(client)
    assert engine.heard()["sampling"]["logprobs"] == -1
    chat(client, logprobs=True, top_logprobs=2)
    assert engine.heard()["sampling"]["logprobs"] == 2
    client.generate("tiny", "a", raw=True, logprobs=True, top_logprobs=1)
    assert engine.heard()["sampling"]["logprobs"] == 1


def test_an_unfinished_answer_is_continued(engine, client):
    engine.says("b")
    chat(client, messages=[*CHAT, {"role": "assistant", "content": "it is a"}])
    assert engine.prompt() == PROMPT + "it is a"


def test_a_form_is_asked_of_the_engine(engine, client):
    engine.says('{"a": 1}')
    chat(client)
    assert engine.heard()["sampling"].get("grammar") is None
    chat(client, format="json")
    json_object = engine.heard()["sampling"]["grammar"]
    assert json_object is not None
    chat(client, format={"type": "object", "properties": {"a": {"type": "integer"}}})
    assert "integer" in json.dumps(engine.heard()["sampling"]["grammar"])
    assert "integer" not in json.dumps(json_object)


def test_nothing_asked_loads_what_is_loaded(client):
    assert client.generate("tiny", keep_alive="5m").done_reason == "load"
    answer = client.chat("tiny", keep_alive=0)
    assert (answer.done_reason, answer.message.content) == ("load", "")


def test_what_it_tells_of_the_model(engine, client):
    (model,) = client.list().models
    assert model.model == "tiny:latest"
    assert len(model.digest) == 64
    assert model.size > 0
    assert (model.details.family, model.details.format) == ("llama", "safetensors")
    assert (model.details.parameter_size, model.details.quantization_level) == ("102.72K", "F32")
    (running,) = client.ps().models
    assert (running.name, running.digest, running.context_length) == ("tiny:latest", model.digest, 128)
    shown = client.show("tiny:latest")
    assert shown.template == CHAT_TEMPLATE
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 128
    assert shown.modelinfo["llama.block_count"] == 2
    assert shown.capabilities == ["completion"]
    assert engine.server.ask("/api/show", {"name": "tiny"}).status == 200, "what older clients call it"
    assert engine.server.ask("/api/version").json == {"version": __version__}


def test_models_are_listed_while_they_load(tmp_path):
    with scripted(tmp_path, *ARGS, faults={"load_gate": str(tmp_path / "gate")}, wait="listening") as engine:
        assert [model["name"] for model in engine.server.ask("/api/tags").json["models"]] == ["tiny:latest"]
        assert engine.server.ask("/api/ps").json == {"models": []}
        refused = engine.server.ask("/api/chat", {"model": "tiny", "messages": CHAT})
        assert (refused.status, list(refused.json)) == (503, ["error"])


@pytest.mark.parametrize(
    ("path", "fields", "status", "named"),
    [
        ("chat", {"model": "other"}, 404, "other"),
        ("chat", {"model": "tiny:7b"}, 404, "tiny:7b"),
        ("chat", {"messages": [{"role": "x"}]}, 400, "messages[0].role"),
        ("chat", {"messages": [{"role": "user", "images": ["aGk="]}]}, 400, "messages[0].images"),
        ("chat", {"options": {"mirostat": 1}}, 400, "options.mirostat"),
        ("chat", {"options": {"repeat_last_n": 64}}, 400, "options.repeat_last_n"),
        ("chat", {"options": {"num_ctx": 8192}}, 400, "options.num_ctx"),
        ("chat", {"options": {"temperature": "hot"}}, 400, "options.temperature"),
        ("chat", {"options": {"stop": [""]}}, 400, "options.stop"),
        ("chat", {"format": "yaml"}, 400, "format"),
        ("chat", {"messages": [{"role": "user", "content": "plan " * 200}]}, 400, "128"),
        ("generate", {"suffix": "x"}, 400, "suffix"),
        ("generate", {"template": "x"}, 400, "template"),
        ("generate", {"context": [1, 2]}, 400, "context"),
        ("generate", {"images": ["aGk="]}, 400, "images"),
        ("show", {"model": "other"}, 404, "other"),
        ("pull", {}, 404, "/api/pull"),
    ],
)
def test_errors_are_ollamas_and_name_the_field(engine, path, fields, status, named):
    least = {"chat": {"messages": CHAT}, "generate": {"prompt": "a"}, "show": {}, "pull": {}}[path]
    answer = engine.server.ask(f"/api/{path}", {"model": "tiny", **least, **fields})
    assert (answer.status, list(answer.json)) == (status, ["error"]), answer.body
    assert named in answer.json["error"]


def test_the_client_raises_its_own_errors(client):
    with pytest.raises(ollama.ResponseError, match="does not exist") as caught:
        chat(client, model="other")
    assert caught.value.status_code == 404


def test_the_client_raises_the_error_of_an_abort(tmp_path):
    with scripted(tmp_path, *ARGS, faults={"step_s": 0.5}) as engine:  # the answer lasts for almost a minute
        engine.says("")
        made = ollama.Client(engine.server.base_url.removesuffix("/v1"), headers={"x-request-id": "one"})
        stream = made.chat("tiny", CHAT, stream=True)
        next(stream)
        assert engine.server.ask("/abort_request", {"rid": "one"}).json == {"num_aborted": 1}
        with pytest.raises(ollama.ResponseError, match="aborted"):
            list(stream)
        made._client.close()


def test_every_path_needs_the_key(tmp_path):
    with scripted(tmp_path, *ARGS, "--api-key", "k") as engine:
        for path in ("chat", "generate", "show", "tags", "ps", "version"):
            answer = engine.server.ask(f"/api/{path}", b"{}", method="POST" if path in {"chat", "show"} else "GET")
            assert (answer.status, list(answer.json)) == (401, ["error"]), path
        made = ollama.Client(engine.server.base_url.removesuffix("/v1"), headers={"authorization": "Bearer k"})
        assert made.list().models
        made._client.close()
