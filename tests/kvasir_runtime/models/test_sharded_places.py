"""Ranks' places: together they take every number of a checkpoint, those of one part once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fakes import checkpoints, family_checkpoints
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.sharding import shard
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.family import Place
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.models.sharded_places import sharded_places

SHARED = ("norm", "ln_", "router", "gate.weight", "bias", "kv_a_proj", "latent_proj")
"""What every rank has: norms, routers, gates, and biases and latents that no head or expert has of its own."""


MERGED = (
    "qwen3.5",
    "qwen3.5-moe",
    "nemotron-3-latent",
    "falcon-h1",
    "phi3",
    "glm",
    "chatglm",
    "internlm2",
    "falcon-7b",
    "falcon-40b",
    "command-r-plus",
)
"""Families whose checkpoints have several matrices in one, perhaps with the rows of each head group together, or norms
of each head."""


@pytest.mark.parametrize(
    ("name", "whole_experts"),
    [
        *((name, False) for name in (*checkpoints.FAMILIES, *MERGED)),
        *((name, True) for name in (*checkpoints.EXPERTS, "gpt-oss", "deepseek-v3", "nemotron-3-latent")),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_number_is_read_by_the_ranks_that_compute_with_it(
    tmp_path: Path, name: str, ranks: int, whole_experts: bool
) -> None:
    if name in family_checkpoints.MODELS:
        family_checkpoints.write(tmp_path, name)
    else:
        checkpoints.write(tmp_path, checkpoints.Shape(family=name, vocab_size=321))
    config = read_config(tmp_path, "")
    places = family_of(config).places
    whole = family_of(config).spec(config)
    if ranks == 4 and name.startswith(("qwen3_next", "qwen3.5", "nemotron-3", "falcon-h1")):
        pytest.skip("it has two key heads with a state")
    if ranks == 1 and whole_experts:
        pytest.skip("one rank has all experts")
    read = {name: torch.zeros(place.shape) for name, place in places(whole).items()}
    for index in range(ranks):
        part = shard(whole, Rank(index, ranks, whole_experts))
        filled = {name: torch.zeros(shape) for name, shape in parameter_shapes(part).items()}
        for name_, place in sharded_places(places, whole, part).items():
            assert place.shape == read[name_].shape
            for rows, columns, row in extents_of(place):
                own = read[name_][rows]
                (own[:, columns] if own.dim() > 1 else own).add_(1)
                filled[place.tensor][row : row + own.shape[0]] += 1
        assert all(bool((times == 1).all()) for times in filled.values())
    for name_, times in read.items():
        wanted = {1, max(ranks // whole.num_kv_heads, 1)} | (
            {ranks} if any(part in name_ for part in SHARED) else set()
        )
        assert set(times.unique().tolist()) <= wanted, name_


def extents_of(place: Place) -> Iterator[tuple[slice, slice, int]]:
    """Rows and columns of each section that a place takes, and where they come in our tensor."""
    columns = slice(None) if place.columns is None else slice(place.columns[0], sum(place.columns))
    below, row = 0, place.first_row
    if place.rows is None:
        yield slice(None), columns, row
        return
    for length, (first, count) in zip(place.sections or place.shape[:1], place.rows, strict=True):
        yield slice(below + first, below + first + count), columns, row
        below, row = below + length, row + count


def test_parts_lie_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    config = read_config(checkpoints.write(tmp_path, checkpoints.Shape()), "")
    family, name = family_of(config), "model.layers.0.self_attn."
    whole = family.spec(config)
    second = sharded_places(family.places, whole, shard(whole, Rank(1, 2)))
    assert (second[name + "q_proj.weight"].rows, second[name + "q_proj.weight"].first_row) == (((32, 32),), 0)
    assert (second[name + "k_proj.weight"].rows, second[name + "k_proj.weight"].first_row) == (((16, 16),), 32)
    assert second[name + "o_proj.weight"].columns == (32, 32)
    assert second["model.embed_tokens.weight"].rows == ((160, 160),)
    assert second["model.norm.weight"].rows is None
    fourth = sharded_places(family.places, whole, shard(whole, Rank(3, 4)))
    assert fourth[name + "k_proj.weight"].rows == ((16, 16),)
