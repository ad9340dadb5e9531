"""Calls in answers of every format: found, told piece by piece, and the same however the answer is cut."""

import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes import outputs, tiny_tokenizer
from fakes.outputs import BROKEN, CALLS, LEFT, TWO, joined, parsing, parts
from kvasir_runtime.frontend.detokenizer import Detokenizer
from kvasir_runtime.frontend.parsing import formats
from kvasir_runtime.frontend.parsing.parts import CallArguments, CallBegin, CallBroken, CallEnd, Content, merged

ALL = [(written, text) for written, text, *_ in [*CALLS, *LEFT, *BROKEN]]


def cut(text, places):
    places = [0, *sorted(places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


@pytest.mark.parametrize(("written", "text", "content", "calls"), CALLS)
def test_calls_are_found(written, text, content, calls):
    found = joined(parsing(written), [text])
    assert (found.content, [(call.name, call.arguments) for call in found.calls]) == (content, calls)
    if written != "kimi_k2":
        assert [call.call_id for call in found.calls] == [f"call_{index}" for index in range(len(calls))]
    for call in found.calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(("written", "text"), [*LEFT, *BROKEN])
def test_what_is_no_call_is_content_to_the_letter(written, text):
    found = joined(parsing(written), [text])
    assert (found.content, found.calls) == (text, [])


@pytest.mark.parametrize(("written", "text"), ALL)
def test_one_cut_anywhere_changes_nothing(written, text):
    want = merged(parts(parsing(written), [text]))
    for place in range(1, len(text)):
        assert merged(parts(parsing(written), cut(text, [place]))) == want, place


@pytest.mark.parametrize(("written", "text"), [pair for pair in ALL if len(pair[1]) < 48])
def test_two_cuts_anywhere_change_nothing(written, text):
    want = merged(parts(parsing(written), [text]))
    for first in range(1, len(text)):
        for second in range(first + 1, len(text)):
            assert merged(parts(parsing(written), cut(text, [first, second]))) == want, (first, second)


@pytest.mark.parametrize(("written", "text"), ALL)
def test_every_byte_as_a_token_changes_nothing(written, text):
    encoder = tiny_tokenizer.byte_level()
    letters = encoder.pre_tokenizer.pre_tokenize_str(text)
    ids = [encoder.token_to_id(letter) for word, _ in letters for letter in word]
    detokenizer = Detokenizer(encoder.decode)
    pieces = [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.flush()]
    assert len(pieces) > len(text)
    assert merged(parts(parsing(written), pieces)) == merged(parts(parsing(written), [text]))


FRAGMENTS = sorted(
    {
        *(text for tools in formats.TOOLS.values() for row in tools.rows for text in formats.literals(row) if text),
        *('{"name": "weather", ', '"arguments": {', '"city": "K"', "}", "{", "weather", "clock", "(", "city='K'", ")"),
        *(
            "<|channel|>commentary to=functions.clock<|message|>",
            "<|call|>",
            "<|start|>assistant",
            "<|end|>",
            "so ",
            "\n",
        ),
        *("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", ";", ",", "[", "]", '"', "\\", "<", "1"),
    }
)


@settings(max_examples=300, deadline=None)
@given(
    written=st.sampled_from([*formats.TOOLS, formats.HARMONY]),
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    places=st.lists(st.integers(0, 300), max_size=12),
)
@example(written="hermes", text='so  <tool_call> <tool_call>{"name": "clock"}', places=[4, 20])
def test_cuts_change_nothing_whatever_is_written(written, text, places):
    want = merged(parts(parsing(written), [text]))
    assert merged(parts(parsing(written), cut(text, [place for place in places if place < len(text)]))) == want
    begun = [part.index for part in want if isinstance(part, CallBegin)]
    ended = [part.index for part in want if isinstance(part, CallEnd | CallBroken)]
    assert begun == ended == list(range(len(begun)))
    for call in joined(parsing(written), [text]).calls:
        assert isinstance(json.loads(call.arguments), dict)


@settings(max_examples=150, deadline=None)
@given(
    written=st.sampled_from([*formats.TOOLS, formats.HARMONY]),
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
)
def test_without_calls_nothing_is_lost(written, text):
    found = joined(parsing(written), [text])
    if not found.calls and written != formats.HARMONY:
        assert found.content == text


def test_the_name_comes_first_and_arguments_as_they_are_written():
    pieces = ['<tool_call>{"name": "wea', 'ther", "argum', 'ents": {"ci', 'ty": "K', "öl", 'n"', "}", "}"]
    found = [merged(parts(parsing("hermes"), pieces[:end]))[:-1] for end in range(3, 7)]
    assert found[0] == [CallBegin(0, "call_0", "weather"), CallArguments(0, '{"ci')]
    assert found[1] == [CallBegin(0, "call_0", "weather"), CallArguments(0, '{"city": "K')]
    assert found[3] == [CallBegin(0, "call_0", "weather"), CallArguments(0, '{"city": "Köln"')]
    assert parts(parsing("hermes"), pieces)[-1] == CallEnd(0)


def test_strings_of_xml_are_told_as_they_come():
    pieces = ["<tool_call>\n<function=weather>\n<parameter=city>\nK", "ö\nl"]
    found = merged(parts(parsing("qwen3_coder"), pieces))
    assert found[:2] == [CallBegin(0, "call_0", "weather"), CallArguments(0, '{"city": "Kö\\nl')]
    assert found[2] == CallBroken(0, "".join(pieces))


@pytest.mark.parametrize(
    ("schema", "text", "want"),
    [
        ({"type": "integer"}, "2", "2"),
        ({"type": "integer"}, "2.5", '"2.5"'),
        ({"type": "number"}, " 2 ", "2"),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "5", '"5"'),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "five", '"five"'),
        ({"enum": [1, 2]}, "1", "1"),
        ({"type": "object"}, "{'a': 1}", '{"a": 1}'),
        ({}, "5", '"5"'),
        ({"type": "integer"}, "", '""'),
        ({"type": "array"}, "[1", '"[1"'),
        ({"type": "object"}, '{"a": "</parameter>"}', '{"a": "</parameter>"}'),
    ],
)
def test_xml_parameters_have_the_types_of_their_schema(schema, text, want):
    offered = {"f": {"properties": {"x": schema}}}
    asked = outputs.ParserConfig(tools="qwen3_coder", offered=offered)
    answer = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert joined(asked, [answer]).calls[0].arguments == f'{{"x": {want}}}'


NULLABLE = {"f": {"properties": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}
WRAPPED = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=x>\n%s\n</parameter>\n</function>\n</tool_call>",
    "glm47": "<tool_call>f<arg_key>x</arg_key><arg_value>%s</arg_value></tool_call>",
}


@pytest.mark.parametrize("written", WRAPPED)
@pytest.mark.parametrize("text", ['"Hi" she said', "[1] note", "{", "[", '"a', "", "nul"])
def test_a_text_that_begins_like_json_is_a_text(written, text):
    found = joined(outputs.ParserConfig(tools=written, offered=NULLABLE), [WRAPPED[written] % text])
    assert (found.content, [json.loads(call.arguments) for call in found.calls]) == ("", [{"x": text}])


@pytest.mark.parametrize("text", ["[1] note", '{"a": 1} x', '[1] "a', "[", "{"])
def test_no_value_takes_the_end_of_its_call(text):
    offered = {"f": {"properties": {"x": {"type": ["array", "object"]}}}}
    found = joined(outputs.ParserConfig(tools="glm47", offered=offered), [WRAPPED["glm47"] % text])
    assert [json.loads(call.arguments) for call in found.calls] == [{"x": text}]


def test_identifiers_of_kimi_are_its_own_since_its_template_shows_them():
    text = next(text for written, text, *_ in CALLS if written == "kimi_k2")
    assert [call.call_id for call in joined(parsing("kimi_k2"), [text]).calls] == [
        "functions.weather:0",
        "functions.clock:1",
    ]


def test_a_number_names_the_only_function_of_kimi():
    asked = outputs.ParserConfig(tools="kimi_k2", offered={"clock": {}})
    text = "<|tool_calls_section_begin|><|tool_call_begin|>3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    (call,) = joined(asked, [text]).calls
    assert (call.call_id, call.name) == ("3", "clock")


WHOLE = [(written, text, calls) for written, text, content, calls in CALLS if not content]


@pytest.mark.parametrize(("written", "text", "calls"), WHOLE)
def test_a_forced_answer_that_is_cut_is_calls_and_no_content(written, text, calls):
    """Whatever the place: what is whole stays, the last call has the beginning of its arguments, nothing is raw."""
    whole = joined(parsing(written, forced=True), [text])
    assert [(call.name, call.arguments) for call in whole.calls] == calls
    for place in range(len(text)):
        found = joined(parsing(written, forced=True), [text[:place]])
        assert found.content == ""
        assert len(found.calls) <= len(calls)
        for call, (name, arguments) in zip(found.calls, calls, strict=False):
            assert call.name == name
            assert arguments.startswith(call.arguments) if call.cut else call.arguments == arguments
            assert isinstance(call.input, dict)
        assert not any(call.cut for call in found.calls[:-1])


@pytest.mark.parametrize(("written", "text"), [(written, text) for written, text, calls in WHOLE if calls == TWO[1:]])
def test_a_named_function_is_called_however_early_the_answer_is_cut(written, text):
    asked = outputs.ParserConfig(tools=written, offered={"clock": {}}, forced=True, single=True)
    for place in range(len(text) + 1):
        found = joined(asked, [text[:place]])
        assert [call.name for call in found.calls] == ["clock"]
        assert found.content == ""


def test_a_forced_answer_that_is_cut_in_its_reasoning_calls_nothing():
    asked = parsing("hermes", forced=True, reasoning="qwen3")
    found = joined(asked, ["<think>\nI may <tool_call>"])
    assert (found.content, found.reasoning, found.calls) == ("", "I may <tool_call>", [])


def test_a_single_call_ends_the_answer():
    text = CALLS[0][1] + " more"
    found = parts(parsing("hermes", single=True), [text])
    assert [type(part) for part in found] == [Content, CallBegin, CallArguments, CallEnd]


def test_text_between_and_after_calls_stays():
    text = "a <tool_call>" + '{"name": "clock"}</tool_call>\nb <tool_call>{"name": "clock"}</tool_call> c\n'
    found = merged(parts(parsing("hermes"), [text]))
    assert [part.text for part in found if isinstance(part, Content)] == ["a", "\nb", " c"]
    assert [type(part) for part in found] == [
        Content,
        CallBegin,
        CallArguments,
        CallEnd,
        Content,
        CallBegin,
        CallArguments,
        CallEnd,
        Content,
    ]


@pytest.mark.parametrize(
    "text", ['<tool_call>{"x": ' + "[" * 5000, "<tool_call>" * 3000, '<tool_call>{"a": "' + "x" * 200_000]
)
def test_hostile_answers_stay_content(text):
    assert joined(parsing("hermes"), [text]).content == text


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder"),
        ("[TOOL_CALLS] [", "mistral_v3"),
        ("[TOOL_CALLS]x[ARGS]", "mistral"),
        ("'<tool_call>' + tc.name\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>", "glm45"),
        ("'<tool_call>' + tc.name<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>", "glm47"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}", "minimax_m2"),
        ("<tool_calls>\n...</tool_calls>", "minimax"),
        ("respond with <|tool_call|> followed by a JSON list", "granite"),
        ("<｜tool▁calls▁begin｜> ```json", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v31"),
        ("<|python_tag|>", "llama3_json"),
        ("<|python_start|>", "pythonic"),
        ("<|start|><|channel|>x<|message|>", "gpt_oss"),
        ("<|im_start|>", ""),
    ],
)
def test_a_template_tells_the_format(template, want):
    assert formats.parser_names(template, "auto", "none").tools == want
