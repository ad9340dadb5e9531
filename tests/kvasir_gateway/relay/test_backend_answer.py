"""What an external backend gets, and what of its answer passes: bodies, errors, usage, and answers that are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_gateway.relay import backend_answer
from kvasir_gateway.relay.backend_answer import AnswerError, AnswerReader, BodyError, SentBody, Usage

CHAT = "/v1/chat/completions"
STREAM = SentBody(content=b"", streams=True, hides_usage=True)
WHOLE = SentBody(content=b"")
COUNTED = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
USAGE = Usage(prompt_tokens=7, cached_tokens=2, completion_tokens=3)


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def read(sent, *chunks):
    reader = AnswerReader(sent)
    passed = b"".join(map(reader.feed, chunks))
    return passed + reader.end(), reader.usage


@pytest.mark.parametrize(
    ("path", "fields", "want", "hides"),
    [
        (CHAT, {"model": "r", "seed": 1}, {"model": "m", "seed": 1}, False),
        (CHAT, {"model": "r", "priority": 3, "cache_salt": "s"}, {"model": "m"}, False),
        (CHAT, {}, {"model": "m"}, False),
        (CHAT, {"stream": False}, {"stream": False, "model": "m"}, False),
        (CHAT, {"stream": None}, {"stream": None, "model": "m"}, False),
        (CHAT, {"stream": True}, {"stream": True, "model": "m", "stream_options": {"include_usage": True}}, True),
        (
            "/v1/completions",
            {"stream": True, "stream_options": {"include_usage": True, "x": 1}},
            {"stream": True, "stream_options": {"include_usage": True, "x": 1}, "model": "m"},
            False,
        ),
        (CHAT, {"stream": True, "stream_options": 3}, None, True),
        ("/v1/embeddings", {"stream": True}, {"stream": True, "model": "m"}, False),
    ],
)
def test_the_body_names_the_backends_model_and_wants_usage(path, fields, want, hides):
    sent = backend_answer.sent_body(json.dumps(fields).encode(), path, "m")
    if want is not None:
        assert json.loads(sent.content) == want
    assert sent.hides_usage is hides


def test_other_fields_keep_their_bytes():
    sent = backend_answer.sent_body(b'{"messages":  [1.50, "\\u2603"], "model":"x"}', CHAT, "m")
    assert b'[1.50, "\\u2603"]' in sent.content


@pytest.mark.parametrize(
    ("sent", "headers", "is_answer"),
    [
        (WHOLE, {"content-type": "application/json"}, True),
        (WHOLE, {"content-type": "Application/JSON; charset=utf-8"}, True),
        (WHOLE, {"content-type": "text/html"}, False),
        (WHOLE, {}, False),
        (STREAM, {"content-type": "text/event-stream"}, True),
        (STREAM, {"content-type": "application/json"}, False),
        (WHOLE, {"content-type": "application/json", "content-encoding": "gzip"}, False),
        (WHOLE, {"content-type": "application/json", "content-encoding": "identity"}, True),
    ],
)
def test_an_answer_has_the_type_that_was_requested(sent, headers, is_answer):
    assert (backend_answer.type_error(sent, headers) == "") is is_answer


@pytest.mark.parametrize(
    ("status", "retry_after", "want"),
    [
        (400, "", None),
        (422, "", None),
        (401, "", (503, "backend_unauthorized", 2.0)),
        (403, "", (503, "backend_unauthorized", 2.0)),
        (402, "", (429, "backend_rate_limited", 2.0)),
        (429, "7", (429, "backend_rate_limited", 7.0)),
        (429, "86400", (429, "backend_rate_limited", 60.0)),
        (429, "9" * 400, (429, "backend_rate_limited", 2.0)),
        (429, "Mon, 23 Nov 2026 00:00:00 GMT", (429, "backend_rate_limited", 2.0)),
        (408, "", (503, "backend_unavailable", 2.0)),
        (500, "", (503, "backend_unavailable", 2.0)),
        (529, "", (503, "backend_unavailable", 2.0)),
        (404, "", (503, "backend_invalid_answer", 2.0)),
        (302, "", (503, "backend_invalid_answer", 2.0)),
        (204, "", (503, "backend_invalid_answer", 2.0)),
    ],
)
def test_a_status_says_whether_the_next_one_may_answer(status, retry_after, want):
    found = backend_answer.failure("openai", status, retry_after)
    assert (found and (found.error.status, found.error.code, found.error.retry_after_s)) == want


@pytest.mark.parametrize(
    ("status", "rests"),
    [(401, True), (402, True), (429, True), (408, True), (500, True), (403, False), (404, False), (302, False)],
)
def test_one_rests_for_what_the_request_cannot_have_caused(status, rests):
    assert backend_answer.failure("openai", status).rests is rests


@pytest.mark.parametrize("stream", ["1", '"true"', "0", "[]", "{}"])
def test_a_stream_that_servers_read_in_different_ways_is_refused(stream):
    body = f'{{"model": "r", "stream": {stream}}}'.encode()
    with pytest.raises(BodyError) as refused:
        backend_answer.sent_body(body, CHAT, "m")
    assert (refused.value.error.status, refused.value.error.param) == (400, "stream")
    assert not backend_answer.sent_body(body, "/v1/embeddings", "m").streams


@pytest.mark.parametrize(
    ("document", "message", "code"),
    [
        (b'{"error": {"message": "too long", "code": "c", "param": "p"}}', "too long", "c"),
        (b'{"error": {"message": 1, "code": []}}', "The external backend refuses it with status 400.", None),
        (b'{"error": "x"}', "The external backend refuses it with status 400.", None),
        (b"<html>", "The external backend refuses it with status 400.", None),
        (b"[" * 100_000, "The external backend refuses it with status 400.", None),
    ],
)
def test_an_error_about_the_request_is_told_in_our_shape(document, message, code):
    error = backend_answer.client_error(400, document)
    assert (error.status, error.message, error.code) == (400, message, code)


def test_a_long_message_is_cut():
    long = json.dumps({"error": {"message": "m" * 100_000, "code": "c" * 100_000}}).encode()
    error = backend_answer.client_error(413, long)
    assert (len(error.message), len(error.code)) == (2000, 2000)


@given(st.integers(1, 40), st.booleans())
def test_events_pass_however_they_are_cut(size, asked):
    said = event(choices=[{"delta": {"content": 'say "usage": {"prompt_tokens": 99}'}}], usage=None)
    last = event(choices=[], usage=COUNTED)
    text = said + b": alive\n\n" + last + b"data: [DONE]\n\n"
    sent = SentBody(content=b"", streams=True, hides_usage=not asked)
    passed, usage = read(sent, *(text[at : at + size] for at in range(0, len(text), size)))
    assert passed == (text if asked else text.replace(last, b""))
    assert usage == USAGE


def test_an_answer_with_choices_and_usage_in_one_event_loses_nothing():
    text = event(choices=[{"index": 0}], usage=COUNTED) + b"data: [DONE]\n\n"
    assert read(STREAM, text) == (text, USAGE)


def test_lines_of_both_kinds_end_events():
    text = event(choices=[], usage=COUNTED).replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n"
    assert read(STREAM, text) == (b"data: [DONE]\r\n\r\n", USAGE)


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("padding", [0, 50_000])
def test_the_usage_of_a_whole_answer_is_in_its_end(size, padding):
    document = {"data": "x" * padding, "usage": COUNTED, "fingerprint": 'f "usage": {}'}
    text = json.dumps(document).encode()
    assert read(WHOLE, *(text[at : at + size] for at in range(0, len(text), size))) == (text, USAGE)


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        ('{"prompt_tokens": 5}', Usage(prompt_tokens=5)),
        ('{"prompt_tokens": -5, "completion_tokens": 1e300}', Usage()),
        ('{"prompt_tokens": true, "completion_tokens": "3"}', Usage()),
        ('{"prompt_tokens": 99999999999999999999}', Usage(prompt_tokens=1_000_000)),
        ('{"prompt_tokens": 5, "prompt_tokens_details": 7}', Usage(prompt_tokens=5)),
        (
            '{"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}',
            Usage(prompt_tokens=5, cached_tokens=5),
        ),
        ("null", None),
        ("{x", None),
        ("[" * 3000, None),
    ],
)
def test_what_cannot_be_true_is_not_counted(usage, want):
    assert read(WHOLE, f'{{"usage": {usage}}}'.encode())[1] == want


@pytest.mark.parametrize(
    "chunks",
    [
        [b""],
        [event(choices=[])],
        [b"data: [DONE"],
        [b'data: {"choices": [{"delta": {"content": "data: [DONE]"}}]}\n\n'],
        [b"data: [DONE]\ndata: x\n\n"],
        [b"data: " + b"a" * (backend_answer.MOST_EVENT_BYTES + 1)],
    ],
)
def test_a_stream_without_its_end_or_with_an_endless_event_is_no_answer(chunks):
    with pytest.raises(AnswerError):
        read(STREAM, *chunks)


def test_an_answer_has_a_largest_length():
    reader, chunk = AnswerReader(WHOLE), b" " * (1 << 20)
    for _ in range(64):
        reader.feed(chunk)
    with pytest.raises(AnswerError):
        reader.feed(b" ")


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "end",
    [
        b"data: [DONE]\n\n",
        b"data:[DONE]\n\n",
        b"data: [DONE]\r\n\r\n",
        b"data: [DONE]\n\r\n",
        b": alive\ndata: [DONE]\n\n",
        b"event: end\ndata: [DONE]\n\n",
        b"\n\ndata: [DONE]\n\n",
        b"\ndata: [DONE]\n\n\n",
    ],
)
def test_a_stream_may_end_in_each_way_that_the_standard_has(end, size):
    text = event(choices=[{"index": 0}]) + end
    assert read(STREAM, *(text[at : at + size] for at in range(0, len(text), size)))[0] == text


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE]\r\n"])
def test_the_last_event_may_end_with_the_connection(end):
    first = event(choices=[{"index": 0}])
    assert read(STREAM, first + end)[0] == first + end.rstrip() + b"\n\n"


def test_empty_events_are_read_once():
    """Reading all that is left for each of them would take hours."""
    reader, flood = AnswerReader(STREAM), b"\n\n" * (1 << 19)
    passed = sum(len(reader.feed(flood[at : at + (1 << 18)])) for at in range(0, len(flood), 1 << 18))
    assert passed == len(flood)


def test_an_event_that_comes_in_small_pieces_is_read_once():
    """Reading it from its beginning for each of them would take an hour."""
    reader, num_pieces = AnswerReader(STREAM), backend_answer.MOST_EVENT_BYTES // 2
    assert not any(reader.feed(b"\n.") for _ in range(num_pieces))
    with pytest.raises(AnswerError):
        reader.feed(b".")


@pytest.mark.parametrize("size", [1, 100, 16384])
def test_the_usage_of_a_whole_answer_may_be_anywhere(size):
    document = {"usage": COUNTED, "choices": [{"text": "x" * 20_000, "usage": None}]}
    text = json.dumps(document).encode()
    assert read(WHOLE, *(text[at : at + size] for at in range(0, len(text), size))) == (text, USAGE)


@pytest.mark.parametrize(
    ("texts", "want"),
    [([], 0), (["a"], 1), (["a", "b", "c"], 3), (["a", "a" * 401], 100), (["", "some words"], 2)],
)
def test_the_tokens_of_a_stream_without_usage_are_estimated(texts, want):
    reader = AnswerReader(STREAM)
    for text in texts:
        reader.feed(event(choices=[{"index": 0, "delta": {"content": text}}]))
        reader.feed(b": alive\n\n")
    assert reader.estimated_tokens == want
    reader.feed(b"data: [DONE]\n\n")
    assert reader.estimated_tokens == want
