"""Prompts of texts to embed: what lies behind a text stays, however it is cut."""

from dataclasses import replace

import pytest

from fakes import tiny_tokenizer
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.pooling import inputs
from kvasir_runtime.frontend.pooling.inputs import Cut

END = 7
TEXT = "services scale"


def profile(text_end: int | None) -> ModelProfile:
    return ModelProfile(names=("m",), tokenizer=replace(tiny_tokenizer.tokenizer(), text_end=text_end), max_context=100)


@pytest.mark.parametrize("keep", [None, -1, 50, 5, 1])
def test_a_text_ends_with_its_token_however_it_is_cut(keep):
    bare = inputs.single(TEXT, profile(None), Cut(), param="input")
    kept = len(bare) if keep in (None, -1, 50) else keep - 1
    assert inputs.single(TEXT, profile(END), Cut(keep=keep), param="input") == (*bare[:kept], END)


def test_ids_and_texts_without_special_tokens_are_as_they_are():
    bare = inputs.single(TEXT, profile(None), Cut(), param="input")
    assert inputs.single(TEXT, profile(END), Cut(special=False), param="input") == bare
    assert inputs.single(bare, profile(END), Cut(), param="input") == bare


def test_the_token_behind_counts_against_what_fits():
    text = "a" * 99
    whole = inputs.single(text, profile(END), Cut(keep=-1), param="input")
    assert len(whole) <= 100
    assert not inputs.is_cut(text, whole, profile(END))
    longer = inputs.single(text * 2, profile(END), Cut(keep=-1), param="input")
    assert (len(longer), longer[-1]) == (100, END)
    assert inputs.is_cut(text * 2, longer, profile(END))
