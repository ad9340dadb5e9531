"""Several answers in one form, searched for or sampled: each is valid, and the official client reads them all."""

import json
import math
import sys

import jsonschema
import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.checkpoints import Shape
from kvasir_runtime import LLM, SamplingParams

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
CHAT = [{"role": "user", "content": "plan"}]
PLAN = {
    "type": "object",
    "properties": {"step": {"type": "integer", "minimum": 0, "maximum": 99}, "done": {"type": "boolean"}},
    "required": ["step", "done"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "plan", "schema": PLAN, "strict": True}}
UNIQUE = {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2}
TEMPLATE = (
    "{# <tool_call> #}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
TOOLS = [{"type": "function", "function": {"name": "plan", "parameters": PLAN, "strict": True}}]
BEAMS = {"use_beam_search": True}

pytestmark = pytest.mark.xdist_group("server-guided-choices")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(seed=3, std=0.3))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    options = ("--kv-cache-tokens", "16384", "--max-model-len", "1024", "--device", "cpu")
    with api_process(folder, *options, command=REAL) as running:
        yield running


@pytest.fixture
def client(server):
    with server.strict_openai() as made:
        yield made


def chat(client, **fields):
    """A chat for three short answers, unless told otherwise."""
    asked = {"model": "tiny", "messages": CHAT, "n": 3, "max_tokens": 120, **fields}
    return client.chat.completions.create(**asked)


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"response_format": FORMAT, "extra_body": BEAMS}, PLAN),
        ({"extra_body": {**BEAMS, "guided_json": PLAN}}, PLAN),
        ({"extra_body": {**BEAMS, "structured_outputs": {"json": UNIQUE}, "best_of": 5}}, UNIQUE),
        ({"response_format": {"type": "json_object"}, "extra_body": BEAMS, "max_tokens": 12}, {"type": "object"}),
        ({"response_format": FORMAT, "seed": 5}, PLAN),
        ({"extra_body": {"guided_json": UNIQUE}, "seed": 5, "temperature": 1.5}, UNIQUE),
    ],
)
def test_every_answer_of_several_is_valid(client, fields, schema):
    answer = chat(client, **fields)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices if choice.finish_reason == "stop"]
    assert len(texts) == 3 or fields.get("max_tokens") == 12
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


def test_every_beam_is_a_valid_call(client):
    """They differ in their tokens; two may spell the same text."""
    named = {"type": "function", "function": {"name": "plan"}}
    for choice in ("required", named):
        fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 400}
        answer = chat(client, **fields, extra_body={**BEAMS, "return_token_ids": True})
        assert {choice.finish_reason for choice in answer.choices} == {"tool_calls"}
        assert len({tuple(choice.token_ids) for choice in answer.choices}) == 3
        for choice in answer.choices:
            (call,) = choice.message.tool_calls
            jsonschema.validate(json.loads(call.function.arguments), PLAN)


@pytest.mark.parametrize("how", [{"extra_body": BEAMS}, {"seed": 9}])
def test_a_stream_has_the_same_answers(client, how):
    whole = chat(client, response_format=FORMAT, **how)
    texts = dict.fromkeys(range(3), "")
    reasons, roles = {}, []
    for chunk in chat(client, response_format=FORMAT, stream=True, **how):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
            reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert sorted(roles) == [0, 1, 2]
    assert reasons == dict.fromkeys(range(3), "stop")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_there_are_no_more_beams_than_their_grammar_has_answers(client, stream, kind):
    extra = {**BEAMS, "guided_regex": "[xy]", "best_of": 6}
    fields = {"model": "tiny", "n": 4, "max_tokens": 5, "stream": stream, "extra_body": extra}
    if kind == "chat":
        made = client.chat.completions.create(messages=CHAT, **fields)
    else:
        made = client.completions.create(prompt="the plan", **fields)
    choices = [choice for part in made for choice in part.choices] if stream else made.choices
    texts = (
        [choice.delta.content if stream else choice.message.content for choice in choices]
        if kind == "chat"
        else [choice.text for choice in choices]
    )
    assert sorted(texts) == ["x", "y"]
    assert [choice.index for choice in choices] == [0, 1]
    assert {choice.finish_reason for choice in choices} == {"stop"}


@pytest.mark.parametrize("extra", [BEAMS, {"seed": 4, "temperature": 1.0}])
def test_logprobs_come_with_each_answer(client, extra):
    answer = chat(
        client, response_format=FORMAT, logprobs=True, top_logprobs=3, extra_body={**extra, "return_token_ids": True}
    )
    for choice in answer.choices:
        tokens = choice.logprobs.content
        assert len(tokens) == len(choice.token_ids) - ("use_beam_search" in extra)
        assert "".join(token.token for token in tokens) == choice.message.content
        assert all(math.isfinite(token.logprob) and token.logprob <= 0 for token in tokens)
        assert all(0 < len(token.top_logprobs) <= 3 for token in tokens)


def test_sampled_answers_are_those_of_their_seeds(client):
    """Choice i is drawn with seed + i, whatever else runs."""
    together = [choice.message.content for choice in chat(client, response_format=FORMAT, n=5, seed=7).choices]
    alone = [chat(client, response_format=FORMAT, n=1, seed=7 + i).choices[0].message.content for i in range(5)]
    assert together == alone
    assert len(set(together)) > 1
    logged = chat(client, response_format=FORMAT, n=5, seed=7, logprobs=True)
    assert [choice.message.content for choice in logged.choices] == together, "forced tokens change nothing"


def test_the_library_searches_in_a_form_too(folder):
    with LLM(str(folder), max_model_len=512) as llm:
        params = SamplingParams(use_beam_search=True, n=3, guided_regex="[abc]", max_tokens=4)
        assert sorted(one.text for one in llm.generate(["plan"], params)[0].outputs) == ["a", "b", "c"]
        params = SamplingParams(use_beam_search=True, n=3, guided_regex="[ab]", max_tokens=4)
        assert sorted(one.text for one in llm.generate(["plan"], params)[0].outputs) == ["a", "b"]
