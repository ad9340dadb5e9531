"""Which part of a decoder a rank has, and what cannot be divided."""

from dataclasses import replace

import pytest

from kvasir_api.cache_groups import FULL
from kvasir_runtime.layers.layer_specs import ExpertsSpec, StateSpec
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.sharding import shard
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec, parameter_shapes

EXPERTS = ExpertsSpec(
    layers=(True, False), num_experts=8, top_k=2, intermediate_size=32, renormalised=True, shared_size=48
)
SPEC = DecoderSpec(
    vocab_size=321,
    hidden_size=64,
    num_heads=8,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    attentions=(FULL, FULL),
    rope=RopeSpec(),
    norm_eps=1e-6,
    qkv_bias=True,
    output_bias=True,
    experts=EXPERTS,
)


def test_one_rank_has_the_whole() -> None:
    assert shard(SPEC, Rank()) is SPEC


def test_a_part_has_shapes_and_a_cache_of_its_own() -> None:
    part = shard(SPEC, Rank(1, 2))
    shapes = parameter_shapes(part)
    assert shapes["embedding"] == (161, 64)
    assert shapes["head.weight"] == (161, 64)
    assert shapes["layers.0.qkv.weight"] == ((4 + 2) * 16, 64)
    assert shapes["layers.0.output.weight"] == (64, 64)
    assert shapes["layers.0.output.bias"] == (64,)
    assert shapes["layers.0.router"] == (8, 64)
    assert shapes["layers.0.experts.gate_up.weight"] == (8 * 2 * 16, 64)
    assert shapes["layers.0.experts.down.weight"] == (8 * 64, 16)
    assert shapes["layers.0.shared.down.weight"] == (64, 24)
    assert shapes["layers.1.gate_up.weight"] == (96, 64)
    assert shapes["layers.1.down.weight"] == (64, 48)
    assert part.kv_bytes_per_token(2) * 2 == SPEC.kv_bytes_per_token(2)
    assert not part.usual


def test_a_part_may_have_whole_experts() -> None:
    whole = replace(SPEC, num_heads=6, num_kv_heads=1, intermediate_size=99)
    parts = [shard(whole, Rank(index, 3, True)) for index in range(3)]
    assert [part.experts and part.experts.held for part in parts] == [range(3), range(3, 6), range(6, 8)]
    shapes = parameter_shapes(parts[1])
    assert shapes["layers.0.router"] == (8, 64)
    assert shapes["layers.0.experts.gate_up.weight"] == (3 * 2 * 32, 64)
    assert shapes["layers.0.experts.down.weight"] == (3 * 64, 32)
    assert shapes["layers.0.shared.down.weight"] == (64, 16)


@pytest.mark.parametrize(
    ("experts", "ranks", "why"),
    [
        (None, 4, "the model has no experts"),
        (EXPERTS, 1, "one rank has all experts"),
        (replace(EXPERTS, num_experts=3), 4, "3 experts are fewer than 4 ranks"),
        (replace(EXPERTS, shared_size=33), 4, "33 numbers of the shared expert cannot be divided among 4 ranks"),
    ],
)
def test_what_has_no_whole_experts_for_each_rank_is_named(experts: ExpertsSpec | None, ranks: int, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        shard(replace(SPEC, experts=experts), Rank(0, ranks, True))


@pytest.mark.parametrize("whole_experts", [True, False])
def test_a_rank_with_requests_of_its_own_has_all_but_experts_and_vocabulary(*, whole_experts: bool) -> None:
    """Heads need not divide, nor norms go over each; what is added once to sums of experts is at the first rank."""
    whole = replace(SPEC, num_heads=6, num_kv_heads=1, intermediate_size=99, wide_qk_norm=True)
    parts = [shard(whole, Rank(index, 2, whole_experts, "data")) for index in range(2)]
    first, second = map(parameter_shapes, parts)
    assert [first["embedding"][0], second["embedding"][0]] == [160, 161]
    divided = {name for name, shape in parameter_shapes(whole).items() if shape != first[name]}
    layers = [layer for layer, has in enumerate(EXPERTS.layers) if has]
    of_experts = {f"layers.{layer}.experts.{name}.weight" for layer in layers for name in ("gate_up", "down")}
    assert divided == {"embedding", "head.weight", *of_experts}
    left_out = {"experts.down.bias"} if not whole_experts else set[str]()
    assert [set(part.rank.leaves_out()) for part in parts] == [set(), left_out]
    assert parts[0].kv_bytes_per_token(2) == whole.kv_bytes_per_token(2)


def test_ids_are_divided_without_a_gap_and_key_heads_are_shared() -> None:
    parts = [shard(SPEC, Rank(index, 4)) for index in range(4)]
    ids = [part.vocabulary_of(index) for index, part in enumerate(parts)]
    assert [(of_rank.start, of_rank.stop) for of_rank in ids] == [(0, 80), (80, 160), (160, 240), (240, 321)]
    assert [part.num_kv_heads for part in parts] == [1] * 4


@pytest.mark.parametrize(
    ("change", "ranks", "why"),
    [
        ({"num_heads": 6}, 4, "6 attention heads cannot be divided among 4 ranks"),
        ({"wide_qk_norm": True}, 2, "norms over the queries of all heads cannot be divided among ranks"),
        ({"num_kv_heads": 3}, 2, "3 key heads can neither be divided among 2 ranks nor be shared by them"),
        ({"intermediate_size": 97}, 2, "97 numbers of the feed-forward layers cannot be divided among 2 ranks"),
        ({"experts": replace(EXPERTS, intermediate_size=33)}, 2, "33 numbers of each expert cannot be divided"),
        ({"experts": replace(EXPERTS, shared_size=33)}, 2, "33 numbers of the shared expert cannot be divided"),
        (
            {"state": StateSpec(key_heads=3, value_heads=6, key_dim=8, value_dim=8, conv_width=4)},
            2,
            "3 key heads of layers with a state cannot be divided among 2 ranks",
        ),
    ],
)
def test_what_does_not_divide_is_named(change: dict[str, object], ranks: int, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        shard(replace(SPEC, **change), Rank(0, ranks))
