"""A model that keeps more between tokens than keys and values is found before it is served."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from fakes import undeclared_checkpoints
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.layers import transformers_decoder
from kvasir_runtime.layers.transformers_decoder import TransformersDecoder
from kvasir_runtime.models import transformers_spec
from kvasir_runtime.runner.startup import transformers_check


def compare(judge: Any, changed: Any, dtype: torch.dtype) -> None:
    """As `load_transformers` does; changed() is called before the second of the two is computed."""
    model = judge.to(dtype)
    with torch.inference_mode():
        texts = transformers_check.texts_of(undeclared_checkpoints.VOCAB, torch.device("cpu"))
        reference = [transformers_check.alone(model, text) for text in texts]
        changed(model)
        transformers_decoder.registered(AttentionInterface)
        model.set_attn_implementation(transformers_decoder.ATTENTION)
        observed = transformers_decoder.observed(model, model.config.num_hidden_layers)
        spec = transformers_spec.decoder_spec(model.config, observed)
        transformers_check.check(TransformersDecoder(spec, CPU, model), reference, texts)


def nothing(model: Any) -> None:
    """The same model."""


def mix_neighbours(model: Any) -> None:
    """A convolution over tokens, as some models have beside attention: the token before takes part."""
    layer = model.transformer.h[1].mlp
    own = layer.forward

    def forward(hidden: Tensor) -> Tensor:
        return own(hidden + hidden.roll(1, dims=1))

    layer.forward = forward


def turn_by_place_in_the_step(model: Any) -> None:
    """Positions that are counted and not given."""
    body = model.transformer
    own = body.wpe.forward
    body.wpe.forward = lambda ids: own(torch.ones_like(ids).cumsum(-1) - 1)


def with_the_token_before(hidden: Tensor) -> Tensor:
    """A causal convolution over tokens, of width 2."""
    return hidden + F.pad(hidden, (0, 0, 1, 0))[:, :-1]


def convolve_the_last_layer(judge: Any) -> None:
    """Behind its attention no other layer carries what is wrong at one token to the next."""
    layer = judge.transformer.h[-1].mlp
    own = layer.forward
    layer.forward = lambda hidden: own(with_the_token_before(hidden))


def convolve_the_head(judge: Any) -> None:
    """Of rows, which are not the tokens of a step."""
    own = judge.lm_head.forward
    judge.lm_head.forward = lambda hidden: own(with_the_token_before(hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_passes(tmp_path: Path, dtype: torch.dtype) -> None:
    compare(undeclared_checkpoints.write(tmp_path, "gpt2"), nothing, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changed", [mix_neighbours, turn_by_place_in_the_step])
def test_what_depends_on_the_step_is_refused(tmp_path: Path, changed: Any, dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match="it keeps more between tokens than keys and values"):
        compare(undeclared_checkpoints.write(tmp_path, "gpt2"), changed, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changed", [convolve_the_last_layer, convolve_the_head])
def test_a_model_that_is_wrong_at_single_tokens_alone_is_refused(
    tmp_path: Path, changed: Any, dtype: torch.dtype
) -> None:
    """It is the same model on both sides: computed at once, each text has its own neighbours."""
    judge = undeclared_checkpoints.write(tmp_path, "gpt2")
    changed(judge)
    with pytest.raises(ModelError, match=r"logits of .* differ by .* of their spread"):
        compare(judge, nothing, dtype)


CHUNKS = len(transformers_check.CHUNKS)


@pytest.mark.parametrize(
    ("kind", "steps", "first_alone"),
    [
        ("a first chunk", range(1), False),
        ("a later chunk", range(1, CHUNKS), False),
        ("the first token of a later chunk", range(1, CHUNKS), True),
        ("a single token", range(CHUNKS, len(transformers_check.STEPS)), False),
    ],
)
def test_each_kind_of_token_must_be_right(tmp_path: Path, kind: str, steps: range, first_alone: bool) -> None:
    judge = undeclared_checkpoints.write(tmp_path, "gpt2")
    layer = judge.transformer.h[-1].mlp
    own, sizes, done = layer.forward, [sum(step) for step in transformers_check.STEPS], list[int]()

    def forward(hidden: Tensor) -> Tensor:
        if hidden.shape[1] != [*sizes, 0][len(done)]:  # before the steps the model is observed
            return own(hidden)
        counts = transformers_check.STEPS[len(done)]
        wrong = torch.full((sum(counts),), len(done) in steps and not first_alone)
        wrong[[0, counts[0]]] = len(done) in steps
        done.append(sum(counts))
        return own(hidden - 2 * hidden * wrong[:, None])

    def wrong_from_here(model: Any) -> None:
        layer.forward = forward

    with pytest.raises(ModelError, match=f"logits of {kind} differ by"):
        compare(judge, wrong_from_here, torch.float32)
    assert done == sizes
