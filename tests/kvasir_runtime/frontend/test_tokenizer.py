"""A model's tokenizer files: found, read, refused with the file's name when damaged."""

import json

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import processors

from fakes import checkpoints, tiny_tokenizer
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend import prepare, tokenizer
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.tokenizer import PromptTooLong

CHAT = [{"role": "user", "content": "hi"}]
BODIES = {True: {"model": "m", "messages": CHAT}, False: {"model": "m", "prompt": "hi"}}


@pytest.fixture
def folder(tmp_path):
    checkpoints.write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 320}))
    return tmp_path


def edit(folder, file, **fields):
    path = folder / file
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({k: v for k, v in (document | fields).items() if v is not None}))


def prompt(folder):
    found = tokenizer.load(folder)
    return found.rendered(CHAT, {})


def test_a_checkpoint_is_read(folder):
    found = tokenizer.load(folder)
    assert found.vocab_size == 320
    assert found.decode(found.encode("the plan", special=True, limit=100)) == "the plan"
    assert prompt(folder) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_file_wins_over_the_config(folder):
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    assert prompt(folder) == "<|endoftext|>hi"


@pytest.mark.parametrize(
    ("entry", "want"),
    [
        ([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}], "yes"),
        ("{{ eos_token }}", "<|endoftext|>"),
    ],
)
def test_forms_of_the_config_entry(folder, entry, want):
    edit(folder, "tokenizer_config.json", chat_template=entry, eos_token={"content": "<|endoftext|>"})
    assert prompt(folder) == want


@pytest.mark.parametrize(
    ("settings", "post_processor", "want"),
    [
        ({}, None, None),
        ({"add_eos_token": False, "eos_token": "<|endoftext|>"}, None, None),
        ({"add_eos_token": True, "eos_token": "<|endoftext|>"}, None, 0),
        ({"add_eos_token": True, "eos_token": {"content": "<|endoftext|>"}}, None, 0),
        ({"add_eos_token": True, "eos_token": "<nothing>"}, None, None),
        ({"add_eos_token": True, "eos_token": "<|endoftext|>"}, "$A <|endoftext|>", None),
    ],
)
def test_the_end_of_texts_to_embed_is_that_of_the_config_where_the_file_has_none(
    folder, settings, post_processor, want
):
    edit(folder, "tokenizer_config.json", **settings)
    if post_processor is not None:
        path = folder / "tokenizer.json"
        encoder = Encoder.from_file(str(path))
        special = [("<|endoftext|>", 0)]
        encoder.post_processor = processors.TemplateProcessing(single=post_processor, special_tokens=special)
        encoder.save(str(path))
    assert tokenizer.load(folder).text_end == want


def test_without_a_template_it_loads_and_refuses_chats(folder):
    edit(folder, "tokenizer_config.json", chat_template=None)
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.load(folder).rendered(CHAT, {})


def test_padding_and_truncation_of_the_file_are_ignored(folder):
    encoder = tiny_tokenizer.byte_level()
    fresh = type(encoder).from_str(encoder.to_str())
    fresh.enable_truncation(3)
    fresh.enable_padding(length=50)
    fresh.save(str(folder / "tokenizer.json"))
    assert len(tokenizer.load(folder).encode("xyzxyz", special=True, limit=100)) == 6


def test_a_text_that_cannot_fit_is_not_even_tokenized(folder):
    with pytest.raises(PromptTooLong) as caught:
        tokenizer.load(folder).encode("x" * 1_000_000, special=False, limit=100)
    assert caught.value.least_tokens > 100


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", None),
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"vocab_size": "many"}'),
        ("config.json", "[" * 100_000),
        ("tokenizer.json", None),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", '{"version": 1'),
        ("tokenizer_config.json", "nonsense"),
        ("tokenizer_config.json", '{"chat_template": "{% for %}"}'),
        ("tokenizer_config.json", '{"chat_template": 5}'),
        ("chat_template.jinja", "{{ unclosed"),
    ],
)
def test_damage_is_one_line_that_names_the_place(folder, file, content):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(ModelError) as caught:
        tokenizer.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


LOOP = "{% for m in messages %}[{{ m.role }}] {{ m.content }}END{% endfor %}"


@pytest.mark.parametrize(
    ("template", "want"),
    [
        (LOOP.replace("END", "<|im_end|>\n"), "<|im_end|>"),
        (LOOP.replace("END", " <|endoftext|>"), "<|endoftext|>"),
        (LOOP.replace("END", "\n\n"), None),
        (LOOP.replace("END", "{% if not loop.last %}<|im_end|>{% endif %}"), None),
        ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}", None),
        ("{{ raise_exception('no') }}", None),
        (None, None),
    ],
)
def test_the_end_of_an_answer_is_what_the_template_writes_behind_one(folder, template, want):
    edit(folder, "tokenizer_config.json", chat_template=template)
    found = tokenizer.load(folder)
    assert found.turn_end == (None if want is None else found.encoder.token_to_id(want))


CHATML = ModelProfile(
    names=("m",),
    tokenizer=tiny_tokenizer.tokenizer("{% for m in messages %}{{ m.content }} </s>\n{% endfor %}"),
    max_context=64,
)


@pytest.mark.parametrize(
    ("fields", "chat", "want"),
    [
        ({}, True, (1,)),
        ({"stop_token_ids": [5, 1]}, True, (5, 1)),
        ({"stop_token_ids": [5], "ignore_eos": True}, True, (5,)),
        ({}, False, ()),
    ],
)
def test_a_chat_ends_where_its_template_ends_a_message(fields, chat, want):
    """Fine-tunes whose configs name the base model's end only would run to max_tokens."""
    assert (
        prepare.from_bytes(json.dumps(BODIES[chat] | fields).encode(), CHATML, chat=chat)
        .requests[0]
        .sampling.stop_token_ids
        == want
    )
