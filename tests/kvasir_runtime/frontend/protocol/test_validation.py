"""Fields without effect: left out and named, at any depth; refused where the server is strict, or where they matter."""

import json

import pytest
from pydantic import ValidationError

from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol import generation
from kvasir_runtime.frontend.protocol.sampling_fields import SamplingFields
from kvasir_runtime.frontend.protocol.validation import (
    MAX_BRACKETS,
    MAX_COMMAS,
    MAX_LONG_NUMBERS,
    MAX_NAMES,
    ReceivedBody,
)
from kvasir_runtime.server.api.anthropic import protocol

MESSAGE = {"role": "user", "content": "hi"}


def received(strict=False, **fields):
    return ReceivedBody(json.dumps({"messages": [MESSAGE], **fields}).encode(), strict=strict)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"max_token": 5}, ["max_token"]),
        ({"colour": None}, []),
        ({"provider": {"order": ["a"]}, "usage": {"include": True}}, ["provider", "usage"]),
        ({"messages": [MESSAGE | {"cache_control": {"type": "ephemeral"}}]}, ["messages[0].cache_control"]),
        ({"messages": [{**MESSAGE, "role": "assistant", "thinking_blocks": [1]}]}, ["messages[0].thinking_blocks"]),
        ({"stream_options": {"speed": 1, "include_usage": True}}, ["stream_options.speed"]),
        (
            {"tools": [{"type": "function", "cache_control": 1, "function": {"name": "f", "extra": 2}}]},
            ["tools[0].function.extra", "tools[0].cache_control"],
        ),
        ({"verbosity": "low", "store": True, "stream_interval": 3}, ["verbosity", "store", "stream_interval"]),
        ({"user": "me", "metadata": {"a": "b"}, "store": False}, []),
    ],
)
def test_fields_without_effect_are_left_out_and_named(fields, want):
    body = received(**fields)
    generation.parse_chat(body)
    assert sorted(body.ignored) == sorted(want)
    if want:
        with pytest.raises(Refused) as caught:
            generation.parse_chat(received(strict=True, **fields))
        assert caught.value.error.param in want


@pytest.mark.parametrize("fields", [{"audio": {"voice": "x"}}, {"chat_template": "x"}, {"thinking_token_budget": 5}])
def test_fields_that_would_change_the_answer_are_refused(fields):
    with pytest.raises(Refused) as caught:
        generation.parse_chat(received(**fields))
    assert caught.value.error.code == "unsupported_parameter"


def test_a_wrong_field_is_reported_before_an_unknown_one():
    with pytest.raises(Refused) as caught:
        generation.parse_chat(received(colour=1, temperature="hot"))
    assert caught.value.error.param == "temperature"


def test_a_body_of_unknown_fields_alone_is_refused():
    with pytest.raises(Refused, match="Unrecognized"):
        generation.parse_chat(received(**{f"field{number}": 1 for number in range(200)}))


def test_faults_beyond_count_are_counted_alone(monkeypatch):
    """A list of half a million of them holds the interpreter for most of a second."""
    monkeypatch.setattr(ValidationError, "errors", None, raising=False)
    with pytest.raises(Refused, match="2000 faults") as caught:
        generation.parse_chat(received(**{f"field{number}": 1 for number in range(2000)}))
    assert caught.value.error.code == "invalid_value"


def test_fields_named_like_kinds_of_a_union_are_told_from_them():
    """The kind `text` stands in the path of an error where the block has a field of this name."""
    block = {"type": "text", "text": "hi", "colour": 1}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{**block, "text": "there"}], "tool_result": 1}
    body = ReceivedBody(
        json.dumps({"max_tokens": 5, "messages": [{"role": "user", "content": [block, result]}]}).encode()
    )
    _, chat = protocol.parsed(body)
    assert [message.content for message in chat.messages] == ["hi", "there"]
    assert sorted(body.ignored) == [
        "messages[0].content[0].text.colour",
        "messages[0].content[1].tool_result.content[0].colour",
        "messages[0].content[1].tool_result.tool_result",
    ]


LONG_TO_DECODE = {
    "values": b"[" + b"1," * (MAX_COMMAS + 1) + b"1]",
    "lists": b"[" * (MAX_BRACKETS + 1),
    "names": b"{" + b'"a":1,' * MAX_NAMES + b'"a":1}',
    "names before blanks": b"{" + b'"a" \t\r\n :1,' * MAX_NAMES + b'"a":1}',
    "100 digits": b"[" + b"9" * 100 + (b"," + b"9" * 100) * MAX_LONG_NUMBERS + b"]",
    "999 digits": b"[" + b"9" * 999 + (b"," + b"9" * 999) * (MAX_LONG_NUMBERS // 9) + b"]",
    "25 digits": b'{"metadata":[' + b"9" * 25 + (b"," + b"9" * 25) * (MAX_COMMAS // 2 + 100) + b"]}",
    "98 digits": b'{"metadata":[' + b"9" * 98 + (b"," + b"9" * 98) * (MAX_COMMAS // 4 + 1) + b"]}",
}


@pytest.mark.parametrize("raw", LONG_TO_DECODE.values(), ids=LONG_TO_DECODE)
def test_a_body_whose_decoding_would_take_long_is_not_decoded(raw):
    with pytest.raises(Refused) as caught:
        generation.parse_chat(raw)
    assert caught.value.error.code == "too_many_values"


@pytest.mark.parametrize("number", [b"123456", b"123456789012345678", b"0.12345678901234567"])
def test_as_many_numbers_as_a_body_may_have_are_taken_where_they_fit_into_64_bits(number):
    raw = b'{"metadata":[' + number + (b"," + number) * (MAX_COMMAS - 2) + b'],"prompt":"x"}'
    assert generation.parse_completion(raw).prompt == ["x"]


@pytest.mark.parametrize("text", [":" * 200_000, "12:34:56 done, " * 20_000, "3" * 400_000, "1 " * 400_000])
def test_texts_count_only_where_they_read_like_fields(text):
    raw = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert generation.parse_chat(raw).messages[0].content == text


@pytest.mark.parametrize("first", [b'"continuation"', b'"contin\\u0075ation"'])
def test_of_fields_with_one_name_the_last_counts(first):
    """The gateway's relay adds its token behind that of the client."""
    body = ReceivedBody(b'{"prompt": "x", %s: "old", "continuation": "new"}' % first, takes_continuation=True)
    generation.parse_completion(body)
    assert body.continuation == "new"


def test_a_list_of_wrong_ids_is_refused_at_the_first():
    """Each fault would be an object of its own."""
    with pytest.raises(ValidationError) as caught:
        SamplingFields.model_validate({"allowed_token_ids": ["1"] * 1000})
    assert caught.value.error_count() == 1
