"""Results of tools as blocks of the model's format: what they say, how long they may be, what is remembered of them."""

from dataclasses import replace

import pytest

from fakes import tiny_tokenizer
from fakes.counting_encoder import CountingEncoder
from kvasir_runtime.frontend.chat_prompt import ChatPrompt
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.tool_results import ToolResult, ToolResultRenderer

PROMPT = ChatPrompt(
    messages=[{"role": "user", "content": "plan"}], variables={"add_generation_prompt": True}, tools=None
)
LONG = "the engine reads a plan " * 2500


def renderer(encoder, salt=b"", max_context=100_000):
    tokenizer = replace(tiny_tokenizer.tokenizer(), encoder=encoder)
    return ToolResultRenderer(prompt=PROMPT, tokenizer=tokenizer, max_context=max_context, salt=salt)


def block(made, content):
    return made.block([ToolResult(tool_call_id="a", content=content)], {"a": "f"})


def test_a_block_is_what_the_template_shows_behind_the_answer():
    encoder = CountingEncoder(tiny_tokenizer.byte_level())
    found = block(renderer(encoder), "done")
    assert (found.text, found.call_ids) == ("\n<tool>done\n<assistant>", ("a",))
    assert encoder.decode(list(found.token_ids)) == found.text


def test_what_is_remembered_of_a_result_is_separated_by_the_requests_salt():
    """Else the time that a block takes would show whether another client's tool gave the same."""
    encoder = CountingEncoder(tiny_tokenizer.byte_level())
    made = renderer(encoder)
    salted = [replace(made, salt=salt) for salt in (b"tenant", b"other")]
    block(made, LONG)
    whole = encoder.counted()
    block(made, LONG)
    assert encoder.counted() < whole / 2, "its parts are known"
    for one in salted:
        block(one, LONG)
        assert encoder.counted() == whole
        block(one, LONG)
        assert encoder.counted() < whole / 2


def test_a_result_that_cannot_fit_is_refused_before_it_is_tokenized():
    encoder = CountingEncoder(tiny_tokenizer.byte_level())
    with pytest.raises(Refused) as caught:
        block(renderer(encoder, max_context=100), LONG)
    assert (caught.value.error.param, caught.value.error.code) == ("results", "context_length_exceeded")
    assert encoder.counted() == 0
