"""One call a step beside one operation after another, in every variant and precision, for layers beyond Llama's."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes import checkpoints
from fakes.by_hand import runner_of
from fakes.checkpoints import Shape
from kvasir_api.options import Quantization
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.cpu.ops import cpp_ops
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.runner.runner import ModelRunner

SMALL = Shape(dtype=torch.bfloat16, head_dim=24, tied=True)
FAMILIES = {
    "gemma2": replace(SMALL, family="gemma2"),
    "gemma3": replace(SMALL, family="gemma3_text", seed=1),
    "mixtral": replace(SMALL, family="mixtral", seed=2, extra={"sliding_window": 24}),
    "qwen2-moe": replace(SMALL, family="qwen2_moe", head_dim=16, seed=3, top_k=4, shared_size=64),
    "qwen3-moe": replace(SMALL, family="qwen3_moe", seed=4, num_experts=20, top_k=3, extra={"mlp_only_layers": [1]}),
}
LENGTHS = (1, 70, 9)
MEDIAN, NINE_OF_TEN = 0.02, 0.06
"""Of the largest number of a row: several roundings to bfloat16, of activations beside fewer bits to 8 too. A router
that is nearly undecided sends a token to another expert for one of them.
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    return root / name if (root / name).exists() else checkpoints.write(root / name, FAMILIES[name])


def batch_of(lengths: tuple[int, ...], runner: ModelRunner, first: int = 0) -> Batch:
    """Prompts of these lengths, of which all positions are wanted. first: the number of the first prompt."""
    generator, columns, groups = torch.Generator(), 16, runner._cache.num_groups
    tokens = [torch.randint(3, 320, (n,), generator=generator.manual_seed(first + i)) for i, n in enumerate(lengths)]
    tables = torch.arange(groups * len(lengths) * columns).view(groups, len(lengths), columns)
    positions = [torch.arange(n) for n in lengths]
    slots = [
        torch.cat([table[at // 8] * 8 + at % 8 for table, at in zip(of_group, positions, strict=True)])
        for of_group in tables
    ]
    return Batch(
        token_ids=torch.cat(tokens),
        positions=torch.cat(positions),
        slots=torch.stack(slots),
        attn_metadata=tuple(AttentionMetadata(lengths, lengths, of_group) for of_group in tables),
        logit_rows=torch.arange(sum(lengths)),
    )


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_variant_agrees_with_one_operation_after_another(
    root: Path, variant: Library, name: str, quantization: Quantization
) -> None:
    ops, folder = cpp_ops(variant), folder_of(root, name)
    whole, parts = (
        runner_of(folder, ops=table, dtype=torch.bfloat16, quantization=quantization)
        for table in (ops, replace(ops, decoder_step=None))
    )
    assert whole._model.step is not None
    assert parts._model.step is None
    got, want = (
        runner._model.forward(batch_of(LENGTHS, runner), runner._cache).hidden.float() for runner in (whole, parts)
    )
    apart = ((got - want).abs().amax(dim=1) / want.abs().amax(dim=1)).sort().values
    assert float(apart[len(apart) // 2]) < MEDIAN
    assert float(apart[len(apart) * 9 // 10]) < NINE_OF_TEN
    mine = torch.cat(
        [
            whole._model.forward(batch_of((length,), whole, first=i), whole._cache).hidden.float()
            for i, length in enumerate(LENGTHS)
        ]
    )
    assert variant.amx or torch.equal(mine, got), "a token has the same bits in any company"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_router_without_finite_logits_invalidates_its_tokens_alone(
    tmp_path: Path, variant: Library, value: float
) -> None:
    folder = checkpoints.write(tmp_path / "m", replace(FAMILIES["mixtral"], num_layers=1))
    weights = load_file(folder / "model.safetensors")
    table = weights["model.embed_tokens.weight"]
    table[7] = value
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    runner = runner_of(folder, ops=cpp_ops(variant), dtype=torch.bfloat16)
    batch = batch_of((1, 1, 1), runner)
    batch.token_ids.copy_(torch.tensor([5, 7, 9]))
    output = runner._model.forward(batch, runner._cache)
    assert [bool(row.isfinite().all()) for row in output.hidden] == [True, False, True]
