"""What a model can be asked for, from its files, its head and the options."""

import json

import pytest

from fakes import checkpoints, ggufs, tiny_tokenizer
from kvasir_api.cache_groups import BIDIRECTIONAL, FULL
from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend.pooling.capabilities import (
    Capabilities,
    EmbeddingCapability,
    ScoringCapability,
    capabilities,
)
from kvasir_runtime.wire import EngineFacts, PoolingConfig

NORMALIZED = ("Transformer", "Pooling", "Normalize")


def ready(head="vocabulary", labels=0, encoder=False):
    sizes = {"block_size": 16, "num_blocks": 4, "max_model_len": 64, "max_sequences": 8, "max_batch_tokens": 64}
    facts = {"device": "cpu", "kernels": "cpu", "dtype": "float32", "weights_bytes": 1, "kv_bytes_per_token": 1}
    return EngineFacts(
        **sizes,
        **facts,
        load_s=0.0,
        warm_s=0.0,
        hidden_size=64,
        head=head,
        num_labels=labels,
        attentions=(BIDIRECTIONAL if encoder else FULL,),
    )


def able(
    folder, *, head="vocabulary", labels=0, encoder=False, modules=(), module=None, config=None, prompts=None, **options
) -> Capabilities:
    (folder / "config.json").write_text(json.dumps({**checkpoints.config_json(checkpoints.Shape()), **(config or {})}))
    if modules:
        rows = [
            {"idx": i, "name": "", "path": f"{i}", "type": f"sentence_transformers.models.{name}"}
            for i, name in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(rows))
    if module is not None:
        place = folder / str(modules.index("Pooling"))
        place.mkdir()
        (place / "config.json").write_text(json.dumps(module))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    facts = ready(head, labels, encoder)
    return capabilities(folder, ServeOptions(model="m", **options), facts, tiny_tokenizer.tokenizer())


@pytest.mark.parametrize(
    ("given", "kind", "normalize", "declared"),
    [
        ({}, "last", True, False),
        ({"head": "none"}, "last", True, True),
        ({"pooling": "mean"}, "mean", True, True),
        ({"normalize": "never"}, "last", False, False),
        ({"modules": NORMALIZED, "module": {"pooling_mode_lasttoken": True}}, "last", True, True),
        ({"modules": NORMALIZED, "module": {"pooling_mode_mean_tokens": True}}, "mean", True, True),
        ({"modules": NORMALIZED[:2], "module": {"pooling_mode": "mean"}}, "mean", False, True),
        ({"modules": NORMALIZED[:2], "module": {"pooling_mode": "mean"}, "normalize": "always"}, "mean", True, True),
        ({"modules": NORMALIZED, "module": {"pooling_mode_cls_token": True}, "pooling": "last"}, "last", True, True),
        ({"modules": (*NORMALIZED[:2], "Dense", "Dense"), "module": {"pooling_mode": "mean"}}, "mean", False, True),
        ({"head": "labels", "labels": 1, "pooling": "last"}, "last", True, True),
        ({"encoder": True, "head": "none"}, "mean", True, True),
        ({"encoder": True, "head": "none", "pooling": "cls"}, "cls", True, True),
        (
            {"encoder": True, "head": "none", "modules": NORMALIZED, "module": {"pooling_mode_cls_token": True}},
            "cls",
            True,
            True,
        ),
    ],
)
def test_how_embeddings_are_made(tmp_path, given, kind, normalize, declared):
    made = able(tmp_path, **given).embedding
    assert made == EmbeddingCapability(kind=kind, normalize=normalize, size=64, declared=declared)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"modules": (*NORMALIZED[:2], "CNN")}, "module CNN"),
        ({"modules": (*NORMALIZED, "Dense"), "module": {"pooling_mode_mean_tokens": True}}, "only the order"),
        ({"modules": ("Transformer", "Dense")}, "a vector of each token"),
        (
            {"modules": NORMALIZED, "module": {"pooling_mode_cls_token": True}},
            "the first token of this model sees nothing",
        ),
        ({"encoder": True, "modules": NORMALIZED, "module": {"pooling_mode_max_tokens": True}}, "pooling max"),
        (
            {"modules": NORMALIZED, "module": {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}},
            "mean+max",
        ),
        ({"head": "labels", "labels": 2}, "classification head"),
    ],
)
def test_why_there_are_no_embeddings(tmp_path, given, words):
    made = able(tmp_path, **given).embedding
    assert isinstance(made, str)
    assert words in made


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"head": "labels", "labels": 1}, "label"),
        ({"head": "none"}, "similarity"),
        ({"modules": NORMALIZED, "module": {"pooling_mode_lasttoken": True}}, "similarity"),
        ({"scoring": "similarity"}, "similarity"),
        ({"config": {"classifier_from_token": ["n", "y"]}}, "judgement"),
        ({"config": {"classifier_from_token": ["n", "y"]}, "scoring": "similarity"}, "similarity"),
    ],
)
def test_how_it_scores(tmp_path, given, kind):
    made = able(tmp_path, **given).scoring
    assert not isinstance(made, str)
    assert made.kind == kind
    if kind == "judgement":
        encoder = tiny_tokenizer.tokenizer().encoder
        assert made.pooling == PoolingConfig(
            kind="tokens", token_ids=(encoder.token_to_id("n"), encoder.token_to_id("y"))
        )


@pytest.mark.parametrize(
    ("config", "head_of", "is_probability"),
    [
        ({}, "cls", True),
        ({"classifier_pooling": "mean"}, "mean", True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "cls", False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "cls", False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "cls", True),
        ({"sentence_transformers": {"version": "4.0.1"}}, "cls", True),
    ],
)
def test_how_a_cross_encoder_scores(tmp_path, config, head_of, is_probability):
    made = able(tmp_path, encoder=True, head="labels", labels=1, config=config).scoring
    pooling = PoolingConfig(kind="labels", head_of=head_of)
    assert made == ScoringCapability(kind="label", pooling=pooling, is_probability=is_probability)


def test_prompts_are_those_of_the_checkpoint(tmp_path):
    prompts = {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": "document"}
    made = able(tmp_path, encoder=True, head="none", prompts=prompts).embedding
    assert (made.prompts, made.prompt) == (prompts["prompts"], "passage: ")
    with pytest.raises(ModelError, match=r"config_sentence_transformers\.json"):
        able(tmp_path, prompts={"prompts": {"query": 3}})


def test_an_unknown_activation_of_scores_is_refused(tmp_path):
    config = {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"}
    assert "activation Tanh" in str(able(tmp_path, encoder=True, head="labels", labels=1, config=config).scoring)


def test_why_there_are_no_scores(tmp_path):
    assert "so it has no scores" in str(able(tmp_path).scoring)
    assert "has 3 labels" in str(able(tmp_path, head="labels", labels=3).scoring)


def test_options_that_a_model_cannot_follow_stop_the_start(tmp_path):
    with pytest.raises(ModelError, match="'no' is not one token"):
        able(tmp_path, scoring="yes-no")
    with pytest.raises(ModelError, match="needs a model that generates"):
        able(tmp_path, head="labels", labels=1, scoring="yes-no")
    with pytest.raises(ModelError, match="must hold two tokens"):
        able(tmp_path, config={"classifier_from_token": "yes"})


def test_dimensions_follow_the_config_and_the_option(tmp_path):
    def shortens(**given):
        made = able(tmp_path, **given).embedding
        assert isinstance(made, EmbeddingCapability)
        return made.shortens, made.sizes

    assert shortens() == (False, ())
    assert shortens(matryoshka=True) == (True, ())
    assert shortens(config={"is_matryoshka": True}) == (True, ())
    assert shortens(config={"matryoshka_dimensions": [16, 32]}) == (True, (16, 32))


@pytest.mark.parametrize(("kind", "want"), [(0, "last"), (1, "mean"), (3, "last"), (2, None), (9, None)])
def test_a_gguf_file_says_itself_how_it_is_pooled(tmp_path, kind, want):
    folder = checkpoints.write(tmp_path / "made", checkpoints.Shape(family="qwen3"))
    path = ggufs.write(folder, tmp_path / "m.gguf", qwen3__pooling_type=kind)
    made = capabilities(path, ServeOptions(model="m"), ready(), tiny_tokenizer.tokenizer()).embedding
    if want is None:
        assert "not supported here" in str(made)
    else:
        assert made == EmbeddingCapability(kind=want, normalize=True, size=64, declared=kind != 0)


@pytest.mark.parametrize("text", ["{", "{}", '[{"path": "a"}]', '[{"type": "a.Transformer", "path": "../../etc"}]'])
def test_a_damaged_modules_file_is_an_error_in_a_line(tmp_path, text):
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelError, match=r"modules\.json"):
        able(tmp_path)
