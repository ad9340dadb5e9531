"""Guided answers of a real server: valid in every surface, and hostile grammars cost nobody else anything."""

import http.client
import json
import sys
import threading
import time

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from fakes import checkpoints
from fakes.api_process import JSON, api_process
from fakes.checkpoints import Shape
from kvasir_runtime import LLM, PromptError, SamplingParams

pytestmark = pytest.mark.xdist_group("server-guided")  # its process is shared by the tests of this file

SERVE = ("-m", "kvasir_runtime", "serve")
CHAT = [{"role": "user", "content": "the plan"}]
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
PLAN = {
    "type": "object",
    "properties": {"step": SMALL, "done": {"type": "boolean"}},
    "required": ["step", "done"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(seed=2))


@pytest.fixture(scope="module")
def server(model):
    options = ("--served-model-name", "tiny", "--kv-cache-tokens", "16384", "--max-model-len", "4096")
    with api_process(model, *options, command=(sys.executable, *SERVE)) as running:
        yield running


def chat(server, **fields):
    body = {"model": "tiny", "messages": CHAT, "max_tokens": 200, "temperature": 1, "seed": 3, **fields}
    return server.ask("/v1/chat/completions", body)


def test_every_field_shapes_the_answer(server):
    cases = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "plan", "schema": PLAN, "strict": True}},
        "guided_json": PLAN,
        "structured_outputs": {"json": PLAN},
    }
    for field, value in cases.items():
        answer = chat(server, **{field: value}).json["choices"][0]
        assert json.loads(answer["message"]["content"]).keys() == PLAN["properties"].keys()
        assert answer["finish_reason"] == "stop"
    texts = [choice["message"]["content"] for choice in chat(server, guided_choice=["yes", "no"], n=8).json["choices"]]
    assert set(texts) == {"yes", "no"}
    body = {"model": "tiny", "prompt": "the plan", "guided_regex": "[0-9]{3}", "max_tokens": 9}
    assert server.ask("/v1/completions", body).json["choices"][0]["text"].isdigit()
    answer = chat(server, guided_grammar='start: "a" "b"+ "c"', max_tokens=100, logprobs=True)
    assert set(answer.json["choices"][0]["message"]["content"]) <= {"a", "b", "c"}


class Plan(BaseModel):
    """As an application requests it."""

    model_config = ConfigDict(extra="forbid")

    done: bool
    urgent: bool


def test_the_official_client_parses_what_it_requested(server):
    with openai.OpenAI(base_url=server.base_url, api_key="none") as client:
        made = client.chat.completions.parse(model="tiny", messages=CHAT, response_format=Plan, max_tokens=200)
        assert isinstance(made.choices[0].message.parsed, Plan)
        with client.chat.completions.stream(
            model="tiny", messages=CHAT, response_format=Plan, max_tokens=200
        ) as stream:
            assert isinstance(stream.get_final_completion().choices[0].message.parsed, Plan)


def test_forced_tokens_stream_like_others(server):
    """Several in one chunk, all of them counted."""
    body = {"model": "tiny", "messages": CHAT, "guided_choice": ["the operator watches the services"], "stream": True}
    raw = server.ask("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}).body.decode()
    documents = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    pieces = [one["choices"][0]["delta"].get("content") or "" for one in documents if one["choices"]]
    assert "".join(pieces) == "the operator watches the services"
    tokens = documents[-1]["usage"]["completion_tokens"]
    assert tokens > sum(1 for piece in pieces if piece)


@pytest.mark.parametrize(
    ("schema", "reason"), [({"$ref": "x.json"}, "leads out of the schema"), ({"not": {}}, "nsatisf")]
)
def test_schemas_that_cannot_be_served_have_a_reason(server, schema, reason):
    answer = chat(server, guided_json=schema)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "guided_json", "invalid_grammar")
    assert reason in answer.error["message"]


def deep(depth):
    return '{"type":"array","items":' * depth + "true" + "}" * depth


POWER = {"anyOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]}
HOSTILE = {
    "ten megabytes": '"guided_json":{"enum":["' + "x" * 10_000_000 + '"]}',
    "many properties": '"guided_json":{"properties":{' + ",".join(f'"p{i}":{{}}' for i in range(100_000)) + "}}",
    "more values than a body may have": '"guided_json":{"properties":{'
    + ",".join(f'"p{i}":{{}}' for i in range(200_000))
    + "}}",
    "deeper than JSON is read": f'"guided_json":{deep(100_000)}',
    "intersections": '"guided_json":' + json.dumps({"allOf": [POWER] * 24}),
    "a huge multiple": '"guided_json":{"type":"integer","multipleOf":999983}',
    "another": '"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"multipleOf":999979}}}',
    "intersections of patterns": '"guided_grammar":'
    + json.dumps(
        "start: A\nA: " + " & ".join(f"/(?s:.*)[a-z]{{{n}}}(?s:.*)[0-9]{{{n}}}(?s:.*)/" for n in range(2, 22))
    ),
    "groups": '"guided_regex":' + json.dumps("(" * 5000 + "a" + ")" * 5000),
    "required of itself": '"guided_json":'
    + json.dumps({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    "an empty language": '"guided_regex":' + json.dumps(r"[^\s\S]"),
    "contradictions": '"guided_json":{"type":"array","minItems":5,"maxItems":4}',
    "another machine": '"guided_json":{"$ref":"http://127.0.0.1:1/schema.json"}',
    "without end": '"guided_grammar":' + json.dumps('start: "a" start'),
    "too many choices": '"guided_choice":' + json.dumps(["x"] * 20_000),
    "lone surrogates": '"guided_choice":["\\ud800"]',
}

# Refused before a field is read.
WHOLE_BODY = {"deeper than JSON is read", "lone surrogates", "many properties", "more values than a body may have"}


class Stream(threading.Thread):
    """One long answer; gaps: seconds between its pieces."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.gaps, self.over = [], threading.Event()
        self._connection = http.client.HTTPConnection(*server.http, timeout=60)

    def run(self):
        body = {"model": "tiny", "prompt": "the", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        while not self.over.is_set():
            self._connection.request("POST", "/v1/completions", json.dumps(body), JSON)
            response, last = self._connection.getresponse(), time.monotonic()
            while (line := response.readline()) and not self.over.is_set():
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    self.gaps.append(now - last)
                    last = now
            response.close()
            self._connection.close()


@pytest.mark.timeout(300)
def test_hostile_grammars_are_refused_while_others_go_on(server):
    chat(server, guided_regex="[ab]")  # the vocabulary is loaded
    stream = Stream(server)
    stream.start()
    server.until("streaming", lambda: len(stream.gaps) > 3)
    refused, pieces = {}, {}

    def send(name):
        raw = b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":8,%s}' % HOSTILE[name].encode()
        # They are tried out one after another, and those that wait for 30 s are refused, as on a busy machine.
        while (answer := server.ask("/v1/chat/completions", raw)).status == 429:
            pass
        refused[name] = (answer.status, answer.error)

    senders = [threading.Thread(target=send, args=(name,)) for name in HOSTILE]
    before = len(stream.gaps)
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(240)
    pieces = len(stream.gaps) - before
    stream.over.set()
    stream.join(60)
    assert {name: status for name, (status, _) in refused.items()} == dict.fromkeys(HOSTILE, 400)
    params = {name: error["param"] for name, (_, error) in refused.items()}
    for name, text in HOSTILE.items():
        field = text[1 : text.index('"', 1)]
        assert params[name] == (field if name not in WHOLE_BODY else None), name
    assert pieces > 20, "the stream went on"
    assert chat(server, guided_regex="[ab]").status == 200
    assert server.state()["phase"] == "ready"


def test_metrics_count_trials(server):
    text = server.ask("/metrics").body.decode()
    values = {
        line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if line.startswith("kvasir_gramm")
    }
    assert values["kvasir_grammar_compile_seconds_count"] > values["kvasir_grammars_refused_total"] > 0


def test_python_programs_ask_in_the_same_words(model):
    with LLM(str(model), kv_cache_tokens=8192, device="cpu", dtype="float32", progress=False) as llm:
        params = SamplingParams(guided_json=Plan, max_tokens=200, seed=1)
        for output in llm.generate(["the plan", "a service"], params):
            Plan.model_validate_json(output.outputs[0].text)
        params = SamplingParams(structured_outputs={"choice": ["yes", "no"]}, max_tokens=9)
        assert llm.generate("the plan", params)[0].outputs[0].text in {"yes", "no"}
        with pytest.raises(PromptError, match="unclosed group") as raised:
            llm.generate("the plan", SamplingParams(guided_regex="("))
        assert raised.value.param == "guided_regex"
