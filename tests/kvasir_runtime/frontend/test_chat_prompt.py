"""Tools, calls in a history and switches of thoughts: what the template is shown, what is refused, what is read."""

import json
from dataclasses import replace

import pytest

from fakes import tiny_tokenizer
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.parsing.answer_parser import AnswerParser, ParserConfig
from kvasir_runtime.frontend.parsing.formats import ParserNames, parser_names
from kvasir_runtime.frontend.parsing.parts import Content, Reasoning, merged

TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False},
}
OTHER = {"type": "function", "function": {"name": "g"}}
SHOWS = "{% for t in tools or [] %}{{ t | tojson }};{% endfor %}{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
CALLS = [{"id": "a", "index": 0, "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]


def served(template=SHOWS, parsers=("hermes", "qwen3")):
    return ModelProfile(
        names=("m",), tokenizer=tiny_tokenizer.tokenizer(template), max_context=4096, parsers=ParserNames(*parsers)
    )


def prompted(fields, model=None):
    model = model or served()
    job = prepare.from_bytes(json.dumps({"model": "m", "messages": [], **fields}).encode(), model, chat=True)
    return model.tokenizer.decode(job.requests[0].prompt), job


def refused(fields, model=None):
    with pytest.raises(Refused) as caught:
        prompted({"messages": [{"role": "user", "content": "hi"}], **fields}, model)
    return caught.value.error


def test_the_template_sees_tools_and_calls():
    history = [
        {"role": "assistant", "content": None, "tool_calls": CALLS, "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "42"}]},
    ]
    text, _ = prompted({"messages": history, "tools": [TOOL]})
    tool, _, rest = text.partition(";")
    assert json.loads(tool) == {
        "type": "function",
        "function": {k: TOOL["function"][k] for k in ("name", "description", "parameters")},
    }
    said = [json.loads(line) for line in rest.splitlines()]
    assert said == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "a", "name": "f"},
    ]


@pytest.mark.parametrize("expression", ["'a' + args + 'b'", "'a' ~ args ~ 'b'", "'a%sb' | format(args)"])
def test_arguments_are_text_for_templates_that_print_them(expression):
    template = "{% set args = messages[0].tool_calls[0].function.arguments %}{{ tools }}{{ " + expression + " }}"
    text, _ = prompted({"messages": [{"role": "assistant", "tool_calls": CALLS}]}, served(template))
    assert text == 'Nonea{"x": 1}b'


def test_arguments_that_are_no_object_stay_text():
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{x"}}]
    text, _ = prompted({"messages": [{"role": "assistant", "tool_calls": calls}]})
    assert '"arguments": "{x"' in text


@pytest.mark.parametrize(
    ("fields", "model", "param", "says"),
    [
        ({"tools": [TOOL]}, served("{{ messages[0].content }}"), "tools", "no place"),
        ({"tools": [TOOL]}, served(parsers=("", "")), "tools", "--tool-call-parser"),
        ({"tools": [TOOL], "tool_choice": "required"}, served(parsers=("none", "")), "tool_choice", "none"),
        ({"reasoning_effort": "none"}, None, "reasoning_effort", "no switch"),
    ],
)
def test_what_the_model_cannot_do_is_refused(fields, model, param, says):
    error = refused(fields, model)
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", param)
    assert says in error.message


@pytest.mark.parametrize(
    ("fields", "offered"),
    [
        ({}, {"f", "g"}),
        ({"tool_choice": "auto"}, {"f", "g"}),
        ({"tool_choice": "none"}, set()),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, {"g"}),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
                }
            },
            {"f"},
        ),
    ],
)
def test_only_what_may_be_called_is_read_as_a_call(fields, offered):
    text, job = prompted({"messages": [{"role": "user", "content": "x"}], "tools": [TOOL, OTHER], **fields})
    assert set(job.parser.offered) == offered
    assert '"name": "f"' in text, "the prompt shows all tools whatever may be called, so that its cache stays good"
    assert '"name": "g"' in text


def test_without_tools_and_thoughts_nothing_is_looked_for():
    assert (
        prompted({"messages": [{"role": "user", "content": "x"}]}, served(parsers=("hermes", "none")))[1].parser is None
    )
    assert prompted({"messages": [{"role": "user", "content": "x"}]}, served(parsers=("", "")))[1].parser is None


def test_fields_shape_what_is_read():
    fields = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    _, job = prompted({**fields, "parallel_tool_calls": False, "include_reasoning": False})
    assert (job.parser.single, job.parser.shown) == (True, False)
    assert job.parser == ParserConfig(
        tools="hermes",
        reasoning="qwen3",
        offered={"f": {"type": "object"}},
        prompt=job.parser.prompt,
        single=True,
        shown=False,
    )
    assert job.parser.prompt.endswith('"content": "x"}\n')


@pytest.mark.parametrize(
    ("template", "effort", "want"),
    [
        ("{{ tools }}{{ reasoning_effort }}", "low", "Nonelow"),
        ("{{ tools }}{{ enable_thinking }}", "none", "NoneFalse"),
        ("{{ tools }}{{ enable_thinking }}", "high", "NoneTrue"),
        ("{{ tools }}{{ thinking }}", "minimal", "NoneTrue"),
    ],
)
def test_effort_reaches_the_template_by_the_name_it_has_there(template, effort, want):
    fields = {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": effort}
    assert prompted(fields, served(template))[0] == want


@pytest.mark.parametrize(
    ("effort", "reasoning", "ignored"),
    [("medium", "qwen3", ["reasoning_effort"]), ("high", "none", ["reasoning_effort"]), ("none", "none", [])],
)
def test_an_effort_that_the_template_has_no_switch_for_is_named_and_left_out(effort, reasoning, ignored):
    body = {"messages": [{"role": "user", "content": "x"}]}
    model, named = served(parsers=("hermes", reasoning)), []
    prompt, _ = prompted(body | {"reasoning_effort": effort}, replace(model, ignore=named.append))
    assert (prompt, named) == (prompted(body, model)[0], ignored)


def test_a_switch_that_was_sent_wins_over_the_effort():
    fields = {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "none"}
    fields["chat_template_kwargs"] = {"enable_thinking": True}
    assert prompted(fields, served("{{ enable_thinking }}"))[0] == "True"


@pytest.mark.parametrize(
    ("content", "tail"), [("<think>\nso", "<think>"), ("<think>a</think>b", "</think>"), ("b", "</think>")]
)
def test_an_answer_that_goes_on_is_in_thoughts_where_its_message_is(content, tail):
    fields = {"messages": [{"role": "assistant", "content": content}], "continue_final_message": True}
    assert prompted(fields, served("{{ messages[0].content }}"))[1].parser.prompt == tail


@pytest.mark.parametrize(
    ("content", "pieces", "want"),
    [
        ("Any client", [" that", " speaks"], [Content(" that speaks")]),
        ("<think>a</think>Any", [" \n", "one"], [Content(" \none")]),
        ("<think>a</think>\n", ["\n", "Any"], [Content("Any")]),
        ("<think>so", [" far</think>\n\nAny"], [Reasoning(" far"), Content("Any")]),
        ("<think>\n", ["\nso</think>Any"], [Reasoning("so"), Content("Any")]),
    ],
)
def test_white_space_belongs_to_a_text_that_is_gone_on_with(content, pieces, want):
    fields = {"messages": [{"role": "assistant", "content": content}], "continue_final_message": True}
    parser = AnswerParser(prompted(fields, served("{{ messages[0].content }}"))[1].parser, lambda: "c")
    parts = [part for piece in pieces for part in parser.push(piece)]
    assert merged([*parts, *parser.finish()]) == want


def test_options_win_over_what_the_template_tells():
    template = "<tool_call> <think> {{ tools }}"
    assert parser_names(template, "auto", "auto") == ("hermes", "qwen3")
    assert parser_names(template, "mistral", "none") == ("mistral", "none")
    assert parser_names("", "auto", "auto") == ("", "")
