"""Prompts of texts to embed, and of pairs to score: what lies around a text stays, however it is cut, and pairs are
joined as transformers joins them.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import BertTokenizer, LlamaTokenizer, PreTrainedTokenizerBase, Qwen2Tokenizer, RobertaTokenizer

from fakes import encoder_checkpoints, tiny_tokenizer
from kvasir_runtime.frontend import tokenizer
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.pooling import inputs
from kvasir_runtime.frontend.pooling.inputs import Cut

END = 7
TEXT = "services scale"


def profile(text_end: int | None) -> ModelProfile:
    return ModelProfile(names=("m",), tokenizer=replace(tiny_tokenizer.tokenizer(), text_end=text_end), max_context=100)


@pytest.mark.parametrize("keep", [None, -1, 50, 5, 1])
def test_a_text_ends_with_its_token_however_it_is_cut(keep: int | None) -> None:
    bare = inputs.single(TEXT, profile(None), Cut(), param="input")
    kept = len(bare) if keep in (None, -1, 50) else keep - 1
    assert inputs.single(TEXT, profile(END), Cut(keep=keep), param="input") == (*bare[:kept], END)


def test_ids_and_texts_without_special_tokens_are_as_they_are() -> None:
    bare = inputs.single(TEXT, profile(None), Cut(), param="input")
    assert inputs.single(TEXT, profile(END), Cut(special=False), param="input") == bare
    assert inputs.single(bare, profile(END), Cut(), param="input") == bare


def test_the_token_behind_counts_against_what_fits() -> None:
    text = "a" * 99
    whole = inputs.single(text, profile(END), Cut(keep=-1), param="input")
    assert len(whole) <= 100
    assert not inputs.is_cut(text, whole, profile(END))
    longer = inputs.single(text * 2, profile(END), Cut(keep=-1), param="input")
    assert (len(longer), longer[-1]) == (100, END)
    assert inputs.is_cut(text * 2, longer, profile(END))


def bert(**_: bool) -> PreTrainedTokenizerBase:
    return BertTokenizer(vocab=encoder_checkpoints.wordpiece().get_vocab())


def roberta(**_: bool) -> PreTrainedTokenizerBase:
    encoder = json.loads(tiny_tokenizer.byte_level().to_str())["model"]
    merges = [tuple(one) for one in encoder["merges"]]
    return RobertaTokenizer(vocab=encoder["vocab"] | {"<unk>": 400, "<pad>": 401, "<mask>": 402}, merges=merges)


def llama(**adds: bool) -> PreTrainedTokenizerBase:
    vocab = tiny_tokenizer.byte_fallback().get_vocab()
    return LlamaTokenizer(vocab=vocab, merges=[], add_bos_token=True, **adds)


def qwen2(**adds: bool) -> PreTrainedTokenizerBase:
    encoder = json.loads(tiny_tokenizer.byte_level().to_str())["model"]
    merges = [tuple(one) for one in encoder["merges"]]
    return Qwen2Tokenizer(vocab=encoder["vocab"] | {"<|endoftext|>": 400}, merges=merges, **adds)


def loaded(folder: Path, made: PreTrainedTokenizerBase, **settings: bool) -> ModelProfile:
    """As a checkpoint has it. settings: of tokenizer_config.json alone."""
    made.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(made) + 100}))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return ModelProfile(names=("m",), tokenizer=tokenizer.load(folder), max_context=200)


NOT, IN_FILE, IN_SETTINGS = "not", "in tokenizer.json", "in tokenizer_config.json"


@pytest.mark.parametrize(
    ("make", "ends"),
    [
        *((make, NOT) for make in (bert, roberta, llama, qwen2)),
        *((make, ends) for make in (llama, qwen2) for ends in (IN_FILE, IN_SETTINGS)),
    ],
)
def test_pairs_are_joined_as_transformers_joins_them(
    tmp_path: Path, make: Callable[..., PreTrainedTokenizerBase], ends: str
) -> None:
    is_put = ends != NOT
    judge = make(add_eos_token=is_put)
    stored = make(add_eos_token=False) if ends == IN_SETTINGS else judge
    served = loaded(tmp_path, stored, add_eos_token=is_put)
    assert (served.tokenizer.text_end is not None) == (ends == IN_SETTINGS)
    first, second = "the plan", "a plan reads tokens"
    wanted = judge(first, second, return_token_type_ids=True)
    found = inputs.pair(first, second, served, Cut(), param="text_2")
    assert list(found.ids) == wanted["input_ids"]
    types = wanted["token_type_ids"]
    assert found.second_from == (types.index(1) if 1 in types else 0)
    assert (found.ids[-1] == judge.eos_token_id) == (is_put or make is roberta)


@pytest.mark.parametrize("make", [bert, roberta, llama, qwen2])
def test_a_pair_that_is_cut_keeps_what_lies_around_its_texts(
    tmp_path: Path, make: Callable[..., PreTrainedTokenizerBase]
) -> None:
    served = loaded(tmp_path, make(add_eos_token=False), add_eos_token=True)
    whole = inputs.pair("the plan", "a plan reads tokens", served, Cut(), param="text_2")
    cut = inputs.pair("the plan", "a plan reads tokens", served, Cut(keep=len(whole.ids) - 3), param="text_2")
    assert cut.second_from == whole.second_from
    assert cut.ids == (*whole.ids[:-4], whole.ids[-1])
