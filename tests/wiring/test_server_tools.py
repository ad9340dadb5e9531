"""Tools and thoughts through the official client with strict validation: scripted answers, then a real tiny model.

A random model calls as required only because the grammar leaves it nothing else.
"""

import json
import sys

import jsonschema
import openai
import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.checkpoints import Shape
from fakes.scripted import scripted

TEMPLATE = (
    "{# <tool_call> <think> #}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}={{ c.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}},
    {"type": "function", "function": {"name": "clock", "description": "what time it is"}},
]
LOOSE = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": False}}, TOOLS[1]]
CHAT = [{"role": "user", "content": "plan"}]
THOUGHTS = "<think>\nHm, ö.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
REAL = (sys.executable, "-m", "kvasir_runtime", "serve")

pytestmark = pytest.mark.xdist_group("server-tools")  # its processes are shared by the tests of this file


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with scripted(tmp_path_factory.mktemp("tools"), "--max-model-len", "1024", chat_template=TEMPLATE) as running:
        yield running


@pytest.fixture
def client(engine):
    with engine.server.strict_openai() as made:
        yield made


def ask(client, **fields):
    return client.chat.completions.create(model="tiny", **{"messages": CHAT, "tools": LOOSE, **fields})


def streamed(client, **fields):
    """The message that the chunks of each choice add up to, and how they came."""
    found, reasons, shapes = {}, {}, []
    for chunk in ask(client, stream=True, **fields):
        for choice in chunk.choices:
            one = found.setdefault(choice.index, {"content": "", "reasoning": "", "calls": []})
            delta = choice.delta
            one["content"] += delta.content or ""
            one["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            assert getattr(delta, "reasoning", None) == getattr(delta, "reasoning_content", None)
            for call in delta.tool_calls or ():
                if call.id is not None:
                    assert (call.index, call.type) == (len(one["calls"]), "function")
                    one["calls"].append([call.id, call.function.name, ""])
                    assert call.function.name
                one["calls"][call.index][2] += call.function.arguments or ""
                shapes.append((call.id is not None, bool(call.function.arguments)))
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return found, reasons, shapes


def test_a_whole_answer_with_thoughts_and_calls(engine, client):
    count = engine.says(f"{THOUGHTS}I look.\n{CALL}\n{CLOCK}")
    answer = ask(client)
    (choice,) = answer.choices
    message = choice.message
    assert (choice.finish_reason, message.content) == ("tool_calls", "I look.")
    assert (message.reasoning_content, message.reasoning) == ("Hm, ö.", "Hm, ö.")
    assert [(call.function.name, call.function.arguments, call.type) for call in message.tool_calls] == [
        ("weather", '{"city": "Köln", "days": 2}', "function"),
        ("clock", "{}", "function"),
    ]
    assert len({call.id for call in message.tool_calls}) == 2
    assert all(call.id.startswith("call_") for call in message.tool_calls)
    assert answer.usage.completion_tokens == count + 1
    assert engine.prompt().startswith("weather;clock;<|im_start|>user\nplan")


def test_a_streamed_answer_is_the_same_in_pieces(engine, client):
    engine.says(f"{THOUGHTS}I look.\n{CALL}\n{CLOCK}")
    found, reasons, shapes = streamed(client)
    assert found[0]["content"] == "I look."
    assert found[0]["reasoning"] == "Hm, ö."
    assert [call[1:] for call in found[0]["calls"]] == [["weather", '{"city": "Köln", "days": 2}'], ["clock", "{}"]]
    assert reasons == {0: "tool_calls"}
    assert shapes[0][0]
    assert sum(1 for first, arguments in shapes if arguments and not first) > 5, "arguments come in pieces"


def test_several_choices_usage_and_logprobs(engine, client):
    count = engine.says(CALL)
    chunks = list(ask(client, n=2, stream=True, logprobs=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens == 2 * (count + 1)
    found, reasons, _ = streamed(client, n=2)
    assert {index: len(one["calls"]) for index, one in found.items()} == {0: 1, 1: 1}
    assert reasons == {0: "tool_calls", 1: "tool_calls"}
    answer = ask(client, n=2, extra_body={"return_token_ids": True})
    assert [choice.message.tool_calls[0].function.name for choice in answer.choices] == ["weather", "weather"]
    assert [len(choice.token_ids) for choice in answer.choices] == [count + 1, count + 1]


def test_results_go_back_with_the_call_they_answer(engine, client):
    engine.says(f"{THOUGHTS}{CALL}")
    message = ask(client).choices[0].message
    history = [*CHAT, message.to_dict(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sun"}]
    engine.says("Sun.")
    answer = ask(client, messages=history)
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("stop", "Sun.")
    assert answer.choices[0].message.tool_calls is None
    said = 'assistant\nHm, ö.weather={"city": "Köln", "days": 2}<|im_end|>\n<|im_start|>tool\nsun<|im_end|>'
    assert said in engine.prompt()


def test_the_client_parses_what_is_strict(engine, client):
    engine.says(CALL)
    with client.chat.completions.stream(model="tiny", messages=CHAT, tools=TOOLS[:1]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == {"city": "Köln", "days": 2}


@pytest.mark.parametrize(
    ("fields", "says", "content", "calls", "reason"),
    [
        ({"tool_choice": "none"}, CALL, CALL, None, "stop"),
        ({"tools": openai.NOT_GIVEN}, CALL, CALL, None, "stop"),
        ({"parallel_tool_calls": False}, f"{CALL}{CLOCK} and more", None, ["weather"], "tool_calls"),
        ({}, CALL.replace("weather", "rm"), CALL.replace("weather", "rm"), None, "stop"),
        ({}, CALL.replace("2}", "2"), CALL.replace("2}", "2"), None, "stop"),
        ({"max_tokens": 12}, CALL, None, None, "length"),
        ({"stop": ["days"]}, CALL, CALL[: CALL.index("days")], None, "stop"),
        ({"stop": ["</tool_call>"]}, f"{CALL} more", None, ["weather"], "tool_calls"),
    ],
)
def test_what_is_a_call(engine, client, fields, says, content, calls, reason):
    engine.says(says)
    choice = ask(client, **fields).choices[0]
    assert choice.finish_reason == reason
    found = choice.message.tool_calls
    assert (found and [call.function.name for call in found]) == calls
    if reason == "length":
        assert CALL.startswith(choice.message.content)
    else:
        assert choice.message.content == content
    _, reasons, _ = streamed(client, **fields)
    assert reasons == {0: reason}


def test_thoughts_can_be_left_out_and_switched_off(engine, client):
    engine.says(f"{THOUGHTS}Yes.")
    message = ask(client, extra_body={"include_reasoning": False}).choices[0].message
    assert (message.content, hasattr(message, "reasoning_content")) == ("Yes.", False)
    engine.says("Yes <think>.")
    message = ask(client, reasoning_effort="none").choices[0].message
    assert (message.content, hasattr(message, "reasoning_content")) == ("Yes <think>.", False)
    assert engine.prompt().endswith("<think>\n\n</think>\n\n")


def test_an_answer_within_its_thoughts_has_no_content(engine, client):
    engine.says(f"{THOUGHTS}Yes.")
    choice = ask(client, max_tokens=12).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", None)
    assert "Hm, ö.".startswith(choice.message.reasoning_content)


def test_tools_are_counted_with_the_prompt(engine, client):
    engine.says("Yes.")
    counted = engine.server.ask("/tokenize", {"messages": CHAT, "tools": TOOLS}).json["count"]
    assert counted == ask(client, tools=TOOLS).usage.prompt_tokens


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(family="qwen3", seed=3))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with api_process(folder, "--kv-cache-tokens", "16384", "--device", "cpu", command=REAL) as running:
        yield running


@pytest.fixture
def random_model(real):
    with openai.OpenAI(base_url=real.base_url, api_key="none", max_retries=0, _strict_response_validation=True) as made:
        yield made


NAMED = {"type": "function", "function": {"name": "weather"}}
FIRST = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize("choice", ["required", NAMED, FIRST], ids=["required", "named", "allowed"])
@pytest.mark.parametrize("seed", range(3))
def test_a_random_model_cannot_but_call(random_model, choice, seed):
    fields = {"tools": TOOLS[:1] if choice == "required" else TOOLS, "tool_choice": choice, "seed": seed}
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = ask(random_model, parallel_tool_calls=False, max_tokens=400, extra_body=extra, **fields).choices[0]
    (call,) = answer.message.tool_calls
    assert (answer.finish_reason, answer.message.content, call.function.name) == ("tool_calls", None, "weather")
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    found, reasons, _ = streamed(random_model, parallel_tool_calls=False, max_tokens=400, extra_body=extra, **fields)
    assert [one[1:] for one in found[0]["calls"]] == [["weather", call.function.arguments]]
    assert reasons == {0: "tool_calls"}


def test_a_named_function_is_called_exactly_once(random_model):
    for seed in range(3):
        extra = {"chat_template_kwargs": {"enable_thinking": False}}
        answer = ask(random_model, tools=TOOLS, tool_choice=NAMED, seed=seed, max_tokens=400, extra_body=extra).choices[
            0
        ]
        assert [call.function.name for call in answer.message.tool_calls] == ["weather"]
        assert answer.finish_reason == "tool_calls"


def test_a_call_that_must_be_and_is_cut_has_the_beginning_of_its_arguments(random_model):
    """Whole and streamed, wherever max_tokens cuts it: one call of the named function, and no content."""
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    fields = {"tools": TOOLS, "tool_choice": NAMED, "seed": 1, "extra_body": extra}
    full = ask(random_model, max_tokens=400, **fields).choices[0].message.tool_calls[0].function.arguments
    lengths = set()
    for limit in (1, 20, *range(36, 60, 4)):
        choice = ask(random_model, max_tokens=limit, **fields).choices[0]
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content, call.function.name) == ("length", None, "weather")
        assert full.startswith(call.function.arguments)
        lengths.add(len(call.function.arguments))
        found, reasons, _ = streamed(random_model, max_tokens=limit, **fields)
        assert (reasons[0], found[0]["content"]) == ("length", "")
        assert [one[1:] for one in found[0]["calls"]] == [["weather", call.function.arguments]]
    assert len(lengths) > 2


def test_arguments_that_are_sets_have_no_item_twice(random_model):
    """What no grammar says: it is checked while the call is written."""
    days = {"type": "array", "items": {"enum": ["mon", "tue", "wed"]}, "uniqueItems": True, "minItems": 3}
    parameters = {"type": "object", "properties": {"days": days}, "required": ["days"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "plan", "parameters": parameters, "strict": True}}]
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    for seed in range(4):
        answer = ask(random_model, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=seed,
                     max_tokens=400, extra_body=extra).choices[0]  # fmt: skip
        (call,) = answer.message.tool_calls
        assert sorted(json.loads(call.function.arguments)["days"]) == ["mon", "tue", "wed"]


def test_a_schema_that_nothing_fits_is_refused(random_model):
    impossible = {"name": "f", "parameters": {"type": "object", "properties": {"a": False}, "required": ["a"]}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(random_model, tools=[{"type": "function", "function": impossible}], tool_choice="required")
    assert caught.value.param == "tools"
