"""Fields that ask for a form of answer: what each means, what goes together, and who is refused with which name."""

import json

import pytest
from pydantic import BaseModel

from kvasir_runtime.frontend import output_format
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.parsing.formats import ParserNames
from kvasir_runtime.frontend.protocol import generation
from kvasir_runtime.frontend.protocol.sampling_fields import SamplingFields
from kvasir_runtime.frontend.structured_outputs import build
from kvasir_runtime.wire import Grammar

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
CLOSED = {**SCHEMA, "additionalProperties": False}
TAG = {"format": {"type": "any_text"}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}


def chat(**fields):
    document = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return generation.parse_chat(json.dumps(document).encode())


def grammar_of(body):
    requested = build.requested_grammar(body)
    return None if requested is None else requested.grammar


def schema(document):
    return Grammar(kind="json_schema", text=json.dumps(document))


def named(**fields):
    return {"type": "json_schema", "json_schema": {"name": "n", **fields}}


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None, "structured_outputs": None}, None),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(kind="json_object")),
        ({"response_format": named(schema=SCHEMA)}, schema(SCHEMA)),
        ({"response_format": named(schema=SCHEMA, strict=True, description="d")}, schema(SCHEMA)),
        ({"response_format": named(schema=SCHEMA, strict=False)}, schema(SCHEMA)),
        ({"response_format": named()}, Grammar(kind="json_object")),
        ({"response_format": {"type": "structural_tag", **TAG}}, Grammar(kind="structural_tag", text=json.dumps(TAG))),
        ({"guided_json": SCHEMA}, schema(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, schema(SCHEMA)),
        ({"guided_json": True}, schema({})),
        ({"guided_json": False}, schema(False)),
        ({"guided_regex": "a+"}, Grammar(kind="regex", text="a+")),
        ({"guided_choice": ["ä", "b"]}, Grammar(kind="choice", text='["ä", "b"]')),
        ({"guided_grammar": 'start: "a"'}, Grammar(kind="lark", text='start: "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, schema(SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, schema(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, Grammar(kind="json_object")),
        ({"structured_outputs": {"regex": "a"}}, Grammar(kind="regex", text="a")),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar(kind="choice", text='["a"]')),
        ({"structured_outputs": {"grammar": "start: /a/"}}, Grammar(kind="lark", text="start: /a/")),
        ({"structured_outputs": {"structural_tag": TAG}}, Grammar(kind="structural_tag", text=json.dumps(TAG))),
        (
            {"structured_outputs": {"structural_tag": json.dumps(TAG), "disable_fallback": True}},
            Grammar(kind="structural_tag", text=json.dumps(TAG)),
        ),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "auto"}, schema(SCHEMA)),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "guidance:no-fallback"}, schema(SCHEMA)),
        (
            {"guided_json": SCHEMA, "guided_decoding_backend": "guidance:disable-any-whitespace"},
            schema({**SCHEMA, **COMPACT}),
        ),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "guidance:no-additional-properties"}, schema(CLOSED)),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": "[ ]?"},
            schema({**SCHEMA, "x-guidance": {"whitespace_pattern": "[ ]?"}}),
        ),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": ""}, schema({**SCHEMA, **COMPACT})),
        (
            {"response_format": {"type": "json_object"}, "guided_whitespace_pattern": ""},
            schema({"type": "object", **COMPACT}),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            schema({**SCHEMA, **COMPACT}),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
            schema({**SCHEMA, "x-guidance": {"whitespace_pattern": " "}}),
        ),
        (
            {
                "structured_outputs": {
                    "json": {"type": "array", "items": SCHEMA, "properties": {"x": {"additionalProperties": True}}},
                    "disable_additional_properties": True,
                }
            },
            schema(
                {
                    "type": "array",
                    "items": CLOSED,
                    "properties": {"x": {"additionalProperties": True}},
                    "additionalProperties": False,
                }
            ),
        ),
    ],
)
def test_what_the_fields_mean(fields, grammar):
    assert grammar_of(chat(**fields)) == grammar


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": "json"}, "response_format", "one of text, json_object, json_schema, structural_tag"),
        ({"response_format": {"type": "xml"}}, "response_format", "one of"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format", "a field schema"),
        ({"response_format": {"type": "json_object", "schema": [1]}}, "response_format", "json_schema.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format", ".name"),
        ({"response_format": named(schema=[1])}, "response_format", "json_schema.schema"),
        ({"response_format": named(strict="yes")}, "response_format", "json_schema.strict"),
        ({"response_format": named(colour=1)}, "response_format", "json_schema.colour"),
        ({"guided_json": 5}, "guided_json", "an object or a boolean"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_json": "[1]"}, "guided_json", "an object or a boolean"),
        ({"guided_regex": 5}, "guided_regex", "string"),
        ({"guided_choice": []}, "guided_choice", "non-empty list"),
        ({"guided_choice": ["a", 5]}, "guided_choice", "strings"),
        ({"guided_choice": ["a"] * 16_385}, "guided_choice", "16385 choices"),
        ({"guided_grammar": {}}, "guided_grammar", "string"),
        ({"guided_regex": "a" * 600_000}, "guided_regex", "524288"),
        ({"guided_json": {"enum": ["é" * 300_000]}}, "guided_json", "larger than 524288 bytes"),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend", "auto, guidance"),
        ({"guided_decoding_backend": "guidance:fast"}, "guided_decoding_backend", "auto, guidance"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "requests JSON"),
        ({"guided_whitespace_pattern": " ", "guided_regex": "a"}, "guided_whitespace_pattern", "requests JSON"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "exclude each other"),
        ({"guided_choice": ["a"], "structured_outputs": {"regex": "a"}}, "structured_outputs", "exclude"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "response_format", "exclude"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "json and regex"),
        ({"structured_outputs": {"json": False, "json_object": True}}, "structured_outputs", "json and json_object"),
        ({"structured_outputs": {"xml": 1}}, "structured_outputs", "unknown field xml"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "string regex"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs", "boolean json_object"),
        ({"structured_outputs": []}, "structured_outputs", "an object"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "not valid JSON"),
    ],
)
def test_who_is_refused_with_which_name(fields, param, says):
    with pytest.raises(Refused) as raised:
        build.requested_grammar(chat(**fields))
    assert raised.value.error.status == 400
    assert raised.value.error.param == param
    assert says in raised.value.error.message


def test_grammars_of_many_answers_are_bounded():
    grammar = grammar_of(chat(guided_json={"enum": ["x" * 400_000]}))
    build.check_total(grammar, 16)
    with pytest.raises(Refused) as raised:
        build.check_total(grammar, 256)
    assert raised.value.error.param == "n"


class Person(BaseModel):
    """What an application has at hand."""

    name: str
    age: int


def test_parameters_of_python_take_a_model():
    params = SamplingFields(guided_json=Person)
    sent = json.loads(json.dumps(params.model_dump(exclude_defaults=True)))
    assert grammar_of(chat(**sent)) == schema(Person.model_json_schema())


def forms(grammar):
    """The alternatives of a structural tag by their types, or the kind of another grammar; and what it holds after."""
    if grammar.kind != "structural_tag":
        return [grammar.kind], grammar.after
    form = json.loads(grammar.text)["format"]
    elements = form["elements"] if form["type"] == "or" else [form]
    return [element["type"] for element in elements], grammar.after


THINKING = "user: hi\nassistant: <think>\n"


@pytest.mark.parametrize(
    ("prompt", "reasoning", "want"),
    [
        (THINKING, "qwen3", (["sequence"], "</think>")),
        ("user: hi\nassistant:", "qwen3", (["json_schema", "sequence"], "")),
        ("<think>\n\n</think>\n\n", "qwen3", (["json_schema"], "")),
        ("user: hi\nassistant:", "", (["json_schema"], "")),
    ],
)
def test_a_form_holds_behind_the_thoughts(prompt, reasoning, want):
    output = output_format.of_chat(chat(guided_json=SCHEMA), ParserNames("", reasoning), prompt)
    assert output.field == "guided_json"
    assert forms(output.grammar) == want


@pytest.mark.parametrize(
    ("fields", "field", "want"),
    [
        ({"guided_json": SCHEMA}, "guided_json", ["json_schema", "tags_with_separator"]),
        ({"response_format": {"type": "json_object"}}, "response_format", ["json_schema", "tags_with_separator"]),
        ({"guided_choice": ["a", "b"]}, "guided_choice", ["or", "tags_with_separator"]),
        ({"guided_regex": "a"}, "guided_regex", ["regex", "tags_with_separator"]),
        ({"guided_grammar": "start: /a/"}, "guided_grammar", ["grammar", "tags_with_separator"]),
        (
            {"structured_outputs": {"structural_tag": TAG}},
            "structured_outputs",
            ["structural_tag", "tags_with_separator"],
        ),
        ({"guided_json": SCHEMA, "tool_choice": "required"}, "tools", ["tags_with_separator"]),
        ({"tool_choice": "required"}, "tools", ["tags_with_separator"]),
        ({"guided_json": SCHEMA, "tool_choice": "none"}, "guided_json", ["json_schema"]),
    ],
)
def test_a_form_or_calls(fields, field, want):
    body = chat(tools=[{"type": "function", "function": FUNCTION}], **fields)
    output = output_format.of_chat(body, ParserNames("hermes", ""), "assistant:")
    assert output.field == field
    assert forms(output.grammar)[0] == want
