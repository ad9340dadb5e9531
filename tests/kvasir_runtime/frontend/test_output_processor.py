"""Events become text, counts and reasons."""

import json

import pytest

from fakes import checkpoints, tiny_tokenizer
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend import tokenizer as tokenizers
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.output_processor import OutputProcessor
from kvasir_runtime.wire import EngineOutput, EngineRequest, SamplingConfig

TOKENIZER = tiny_tokenizer.tokenizer()


def ids(text):
    return tuple(TOKENIZER.encoder.encode(text).ids)


def choice(stops=(), *, include=False, min_tokens=0):
    request = EngineRequest(request_id="r", prompt=(1,), sampling=SamplingConfig(max_tokens=99, min_tokens=min_tokens))
    job = GenerationRequest(
        answer_id="a",
        model="m",
        chat=True,
        stream=True,
        include_usage=False,
        requests=(request,),
        num_prompts=1,
        prompt_tokens=1,
        stops=stops,
        include_stop=include,
    )
    return OutputProcessor(request, job, TOKENIZER.decoding(frozenset()))


def accepted(made, event):
    """The text and the reason that an output brings."""
    delta = made.accept(event)
    return delta.text, delta.reason


def event(text="", reason=None, **fields):
    return EngineOutput(request_id="r", token_ids=ids(text), finish_reason=reason, **fields)


def test_text_tokens_and_reason():
    made = choice()
    assert accepted(made, event("one ", cached_tokens=16)) == ("one ", None)
    assert accepted(made, event("two", "length", cached_tokens=16)) == ("two", "length")
    assert (made.num_tokens, made.cached_tokens, made.open) == (len(ids("one ")) + len(ids("two")), 16, False)


def test_the_token_that_stops_is_counted_and_not_shown():
    made = choice()
    assert accepted(made, event("one", "stop", stop_token_id=0)) == ("one", "stop")
    assert made.num_tokens == len(ids("one")) + 1


def test_a_turn_end_is_no_stop_of_the_request(tmp_path):
    """The end of a ChatML message ends a chat, though not because the request named it."""
    checkpoints.write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 320}))
    tokenizer = tokenizers.load(tmp_path)
    profile = ModelProfile(names=("m",), tokenizer=tokenizer, max_context=99)
    assert tokenizer.piece(tokenizer.turn_end) == "<|im_end|>"
    reasons = []
    for stops in ([], [tokenizer.turn_end], [5]):
        body = {"messages": [{"role": "user", "content": "hi"}], "stop_token_ids": stops}
        request = prepare.from_bytes(json.dumps(body).encode(), profile, chat=True)
        assert tokenizer.turn_end in request.requests[0].sampling.stop_token_ids
        made = OutputProcessor(request.requests[0], request, tokenizer.decoding(frozenset()))
        reasons.append(made.accept(event("one", "stop", stop_token_id=tokenizer.turn_end)).stopped_by)
    assert reasons == [None, tokenizer.turn_end, None]


def test_a_stop_string_across_events_ends_the_choice_and_requires_an_abort():
    made = choice(("XYZ",))
    assert accepted(made, event("aX")) == ("a", None)
    assert accepted(made, event("Y")) == ("", None)
    assert accepted(made, event("Zb")) == ("", "stop")
    assert (made.stopped, made.open) == (True, False)


def test_tokens_after_the_stop_in_the_same_step_are_not_counted():
    made = choice(("Y",))
    assert accepted(made, event("XYZZZ")) == ("X", "stop")
    assert made.num_tokens == 2


def test_what_was_held_back_is_sent_at_the_end():
    made = choice(("XYZ",))
    assert accepted(made, event("aXY")) == ("a", None)
    assert accepted(made, event("", "length")) == ("XY", "length")
    assert not made.stopped


def test_a_stop_that_is_complete_only_with_the_last_event_counts_as_stop():
    made = choice(("XY",))
    made.accept(event("aX"))
    assert accepted(made, event("Y", "length")) == ("", "stop")


def test_the_stop_string_is_kept_on_request():
    assert accepted(choice(("Y",), include=True), event("XYZ")) == ("XY", "stop")


@pytest.mark.parametrize(("min_tokens", "want"), [(0, "X"), (2, "X"), (3, "XYZ"), (6, "XYZXYZ")])
def test_stop_strings_wait_for_min_tokens(min_tokens, want):
    made = choice(("Y",), min_tokens=min_tokens)
    assert made.accept(event("XYZXYZ")).text.startswith(want)


def test_events_after_the_end_add_nothing():
    made = choice()
    made.accept(event("a", "length"))
    assert accepted(made, event("b")) == ("", None)


def test_half_a_character_at_the_end_is_shown_as_such():
    half = TOKENIZER.encoder.encode("🚀").ids[:1]
    made = choice()
    delta = made.accept(EngineOutput(request_id="r", token_ids=tuple(half), finish_reason="length"))
    assert delta.text == "\ufffd"
