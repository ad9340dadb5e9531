"""How many logprobs a request may have written: bounded by their number, whichever fields ask for them."""

import json

import pytest

from fakes import tiny_tokenizer
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile

SERVED = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(), max_context=100_000)
IDS = [1] * 20_000
VOCABULARY = SERVED.tokenizer.vocab_size


def sampling(**fields):
    body = {"model": "m", "max_tokens": 1, "prompt": [1, 2], **fields}
    return prepare.from_bytes(json.dumps(body).encode(), SERVED, chat=False).requests[0].sampling


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"prompt": IDS, "prompt_logprobs": 12}, 12),
        ({"prompt": IDS, "echo": True, "logprobs": 12}, 12),
        ({"prompt_logprobs": -1}, VOCABULARY),
    ],
)
def test_what_fits_is_requested_of_the_engine(fields, want):
    assert sampling(**fields).prompt_logprobs == want


def test_all_logprobs_are_those_of_the_vocabulary():
    assert sampling(logprobs=-1, max_tokens=3).logprobs == VOCABULARY


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": IDS, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": [IDS] * 2, "prompt_logprobs": 10}, "prompt_logprobs"),
        ({"prompt": IDS, "prompt_logprobs": 1, "n": 16}, "prompt_logprobs"),
        ({"prompt": IDS, "echo": True, "logprobs": 20}, "prompt_logprobs"),
        ({"prompt": IDS, "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"logprobs": -1, "max_tokens": 2000}, "logprobs"),
        ({"logprobs": -1, "max_tokens": 100, "n": 16}, "logprobs"),
        ({"logprob_token_ids": [VOCABULARY]}, "logprob_token_ids"),
    ],
)
def test_more_than_can_be_written_is_refused_by_name(fields, param):
    with pytest.raises(Refused) as caught:
        sampling(**fields)
    assert caught.value.error.param == param
