"""Tokens of any stream, cut at any output: what is replayed is what was sent, and the rest is what would have come."""

import json
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fakes import tiny_tokenizer
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.continuation import TokenSigner
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.output_processor import output_processors
from kvasir_runtime.frontend.parsing.formats import ParserNames
from kvasir_runtime.frontend.stream_record import StreamRecord, replayed
from kvasir_runtime.server.output_collector import has_news
from kvasir_runtime.wire import EngineOutput, Logprobs

TOKENIZER = tiny_tokenizer.tokenizer(
    "{# <tool_call> <think> #}{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
)
SERVED = ModelProfile(
    names=("m",),
    tokenizer=TOKENIZER,
    max_context=4096,
    parsers=ParserNames(tools="hermes", reasoning="qwen3"),
)
SIGNER = TokenSigner(keys=(b"k" * 32,), model=b"model", tenant=b"tenant")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
BODIES = [
    ({"stop": ["ab", "never"]}, False),
    ({"stop": ["ab"], "include_stop_str_in_output": True, "logprobs": 2, "echo": True}, False),
    ({"return_token_ids": True, "n": 2, "logprobs": 0}, False),
    ({"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 1, "n": 2}, True),
    ({"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "return_token_ids": True}, True),
]
PIECES = [
    *("a", "b", "é", "日本", "\n", "<think>", "</think>", "never ", '{"name": "f", "arguments": {"x": "ö"}}'),
    *("<tool_call>\n", "\n</tool_call>", "text"),
]


def job(fields, *, chat):
    base = {"model": "m", "stream": True, "max_tokens": 900} | ({} if chat else {"prompt": "plan é"})
    made = prepare.from_bytes(json.dumps(base | fields).encode(), SERVED, chat=chat)
    return replace(made, created=5)


def outputs(draw, request):
    """For each choice outputs as an engine gives them, cut anywhere, within characters too."""
    found = []
    for one in request.requests:
        text = "".join(draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=9)))
        ids = TOKENIZER.encoder.encode(text, add_special_tokens=False).ids
        reason = draw(st.sampled_from(["stop", "length"]))
        while ids:
            count = draw(st.integers(1, min(5, len(ids))))
            part, ids = ids[:count], ids[count:]
            logprobs = [Logprobs(-0.5 * token, 1, (token,), (-0.5 * token,)) for token in part]
            output = EngineOutput(
                request_id=one.request_id,
                token_ids=tuple(part),
                cached_tokens=3,
                logprobs=tuple(logprobs) if one.sampling.logprobs >= 0 else (),
            )
            if not ids:
                stopped_by = 0 if reason == "stop" else None
                output = msgspec.structs.replace(output, finish_reason=reason, stop_token_id=stopped_by)
            found.append(output)
    return found


@given(data=st.data())
def test_any_cut_of_any_stream_goes_on_as_it_would_have(data):
    fields, chat = data.draw(st.sampled_from(BODIES))
    request = job(fields, chat=chat)
    events = outputs(data.draw, request)
    places = {one.request_id: place for place, one in enumerate(request.requests)}
    whole = output_processors(request, TOKENIZER)
    record = StreamRecord(request, whole, SIGNER.writer(request))
    cut = data.draw(st.integers(0, len(events)))
    pieces, deltas = [record.begin()], []
    for number, event in enumerate(events):
        place = places[event.request_id]
        if number < cut:
            record.add(place, event)
        deltas.append(whole[place].accept(event))
        if number < cut and data.draw(st.booleans()):
            pieces.append(record.gained())
        if number == cut - 1:
            pieces.append(record.gained())

    resumed = SIGNER.resumed(job(fields, chat=chat), ".".join(piece for piece in pieces if piece))
    choices = output_processors(resumed, TOKENIZER)
    assert without_logprobs(replayed(resumed, choices)) == without_logprobs(deltas[:cut])
    went_on = [choices[places[event.request_id]].accept(event) for event in events[cut:]]
    assert went_on == deltas[cut:]
    assert [one.num_tokens for one in choices] == [one.num_tokens for one in whole]
    assert (resumed.answer_id, resumed.created) == (request.answer_id, 5)
    assert [one.sampling.seed for one in resumed.requests] == [one.sampling.seed for one in request.requests]


def without_logprobs(deltas):
    """Choice by choice what is to be written; logprobs that were sent are in no token."""
    found = [
        replace(delta, tokens=[one._replace(logprobs=None) for one in delta.tokens])
        for delta in deltas
        if has_news(delta)
    ]
    return sorted(found, key=lambda delta: delta.index)
