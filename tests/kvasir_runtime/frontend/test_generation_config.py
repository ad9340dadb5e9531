"""What a checkpoint's generation_config.json does to requests that say nothing, and to those that do."""

import json

import pytest

from fakes import tiny_tokenizer
from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.generation_config import generation_defaults
from kvasir_runtime.frontend.model_profile import ModelProfile

GENERATING = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
SAID = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "max_new_tokens": 5,
    "do_sample": True,
    "eos_token_id": [1, 2],
    "transformers_version": "5.0",
}
OURS = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "max_tokens": 5,
}
ASKED = {"temperature": 1, "top_p": 0.5, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 9}


def read(folder, said, **options):
    (folder / "generation_config.json").write_text(json.dumps(said))
    return generation_defaults(folder, ServeOptions(model="m", **options))


def sampling(said, **fields):
    served = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(GENERATING), max_context=64, defaults=said)
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}
    return prepare.from_bytes(json.dumps(body).encode(), served, chat=True).requests[0].sampling


def test_the_keys_that_requests_have_are_taken(tmp_path):
    assert read(tmp_path, SAID) == OURS
    assert read(tmp_path, {"top_k": None, "eos_token_id": 3}) == {}


def test_none_takes_nothing_and_a_missing_file_says_nothing(tmp_path):
    assert read(tmp_path, SAID, generation_config="none") == {}
    (tmp_path / "generation_config.json").unlink()
    assert generation_defaults(tmp_path, ServeOptions(model="m")) == {}


@pytest.mark.parametrize("said", [{"temperature": -3.5}, {"top_k": "many"}, {"max_new_tokens": 0}])
def test_a_value_that_no_request_may_have_stops_the_start(tmp_path, said):
    with pytest.raises(ModelError, match=r"generation_config\.json.*--generation-config none"):
        read(tmp_path, said)


@pytest.mark.parametrize("field", OURS)
def test_each_default_holds_until_a_request_says_otherwise(field):
    assert getattr(sampling(OURS), field) == OURS[field]
    assert getattr(sampling(OURS, **{field: ASKED[field]}), field) == ASKED[field]
    assert getattr(sampling(OURS, **{field: None}), field) == OURS[field]


def test_the_default_length_is_what_fits_at_most_and_no_cap():
    assert sampling({"max_tokens": 500}).max_tokens < 64
    assert sampling({"max_tokens": 5}, max_completion_tokens=7).max_tokens == 7


def test_completions_keep_openais_length():
    served = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(), max_context=64, defaults=OURS)
    job = prepare.from_bytes(b'{"model": "m", "prompt": "a"}', served, chat=False)
    assert (job.requests[0].sampling.max_tokens, job.requests[0].sampling.temperature) == (16, 0.6)
