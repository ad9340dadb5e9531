"""Norms go into the products that compute them, where nothing else reads what is normalised."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes import checkpoints
from fakes.by_hand import runner_of
from fakes.checkpoints import Shape
from kvasir_api.cache_groups import FULL
from kvasir_runtime.kernels import gated, linear, rms_norm
from kvasir_runtime.kernels.linear import Build, Linear, NormedLinear, Weight
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.layers import norms
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """A product that computes norms of so many tokens too, and counts them."""

    product: Linear
    most: int
    counted: list[int]

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x)

    def normed(self, x: Tensor, residual: Tensor | None, norm: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        if x.shape[0] > self.most:
            return None
        self.counted.append(x.shape[0])
        result, total = rms_norm.reference(x, residual, norm, eps)
        return self.product(result), total


def both(build: Build, most: int, counted: list[int]) -> Build:
    def built(weight: Weight, bias: Tensor | None) -> Linear:
        return Both(product=build(weight, bias), most=most, counted=counted)

    return built


@pytest.mark.parametrize(
    ("family", "most", "want"), [("llama", 9, [9] * 4), ("llama", 8, []), ("qwen3_moe", 9, [9] * 2)]
)
def test_products_that_compute_norms_are_given_what_is_added(
    tmp_path: Path, family: str, most: int, want: list[int]
) -> None:
    """Of both products of each layer, of experts that of attention."""
    folder, counted = checkpoints.write(tmp_path / "m", Shape(family=family, num_layers=2)), list[int]()
    ops = replace(REFERENCE, linear=both(linear.reference, most, counted), gated=both(gated.reference, most, counted))
    tokens = tuple(range(3, 12))
    found = runner_of(folder, num_blocks=8, ops=ops).logits(tokens)
    assert torch.equal(found, runner_of(folder, num_blocks=8, ops=REFERENCE).logits(tokens))
    assert counted == want
    assert isinstance(Both(product=len, most=0, counted=[]), NormedLinear)  # type: ignore[arg-type]


PLAIN = DecoderSpec(
    vocab_size=50, hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=24, attentions=(FULL,),
    rope=RopeSpec(), norm_eps=1e-5, tied_embeddings=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({}, True),
        ({"parallel": True}, True),
        ({"parallel": True, "shared_norm": True}, False),
        ({"joined": frozenset({1})}, False),
        ({"doubled_input": True}, False),
        ({"encoder": EncoderSpec()}, False),
    ],
)
def test_a_norm_that_something_else_reads_too_is_an_operation(change: dict[str, object], want: bool) -> None:
    assert norms.read_once(replace(PLAIN, **change)) is want  # type: ignore[arg-type]
