"""Layouts of several devices: which are possible, what each holds, and which is the smallest that does."""

from dataclasses import replace
from typing import Any

import pytest

from kvasir_api import forecast, layouts, rank_forecast
from kvasir_api.layouts import Layout, LayoutForecast, Wanted
from kvasir_api.model_shape import ModelShape
from kvasir_api.options import RuntimeOptions
from kvasir_api.roofline import Card, Roofline

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 4096,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 1024,
    "vocab_size": 50_000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
SHAPE = forecast.shape(CONFIG)
DENSE = replace(SHAPE, experts=0, chosen_experts=0)
CARD = Card(memory_bytes_per_s=10**12, flops_per_s=10**14)
GIB = 1 << 30


def roofline(shape: ModelShape = SHAPE) -> Roofline:
    return Roofline(shape=shape, card=CARD, dtype="bfloat16", quantization="none", kv_bytes=512)


def wanted(room_bytes: int, **given: float) -> Wanted:
    one = forecast.fit(
        SHAPE, memory_bytes=room_bytes, memory_fraction=1, dtype="bfloat16", max_model_len=0, max_batch_tokens=512
    )
    parts = layouts.weight_parts(SHAPE, "bfloat16", "auto")
    return Wanted(room_bytes=room_bytes, one=one, parts=parts, max_sequences=64, longest=8192, **given)


def found(room_bytes: int, count: int = 8, **given: float) -> dict[Layout, LayoutForecast]:
    of = layouts.forecasts(SHAPE, wanted(room_bytes, **given), layouts.possible(SHAPE, count), roofline())
    return {one.layout: one for one in of}


def test_layouts_divide_heads_layers_and_experts() -> None:
    """Of 6 devices three ranks divide neither heads nor key heads; eight key heads' ranks would share."""
    assert layouts.possible(DENSE, 6) == tuple(
        Layout(tensor=tensor, stages=stages) for tensor, stages in ((1, 1), (2, 1), (1, 2), (1, 3), (2, 3), (1, 6))
    )
    assert [layout.tensor for layout in layouts.possible(replace(DENSE, layers=1), 16)] == [1, 2, 4, 8, 16]
    whole = {layout.tensor for layout in layouts.possible(SHAPE, 8) if layout.whole_experts}
    assert whole == {2, 4}  # of 6 experts
    odd = [layout for layout in layouts.possible(replace(SHAPE, expert_size=1022), 4) if layout.stages == 1]
    assert {(layout.tensor, layout.whole_experts) for layout in odd} == {(1, False), (2, False), (2, True), (4, True)}


def test_each_device_holds_its_part_of_weights_and_cache() -> None:
    """Beside as much room, a token takes a quarter with 4 ranks or stages; 8 ranks share 4 key heads."""
    weights = wanted(GIB).one.weights_bytes
    per_token = wanted(GIB).one.kv_bytes_per_token
    room = 16 * GIB

    def tokens(tensor: int, stages: int) -> int:
        return layouts.kv_tokens(SHAPE, wanted(room), Layout(tensor=tensor, stages=stages))

    assert tokens(1, 1) == (room - weights) // per_token
    assert tokens(4, 1) == pytest.approx((room - weights / 4) / (per_token / 4), rel=1e-6)
    assert tokens(8, 1) == pytest.approx((room - weights / 8) / (per_token / 4), rel=1e-6)
    least, most = (room - weights / 3) / (per_token / 3), (room - weights / 4) / (per_token / 4)
    assert least < tokens(1, 4) < most


GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 4096,
    "vocab_size": 1000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
"""Ten layers with a window in groups of two, and one group of both others: a block has room for two layers."""
LATENTS = CONFIG | {
    "model_type": "deepseek_v2",
    "intermediate_size": 65_536,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
}
"""The first of 24 layers is as large as nine others."""


def over_stages(config: dict[str, Any], stages: int, room_bytes: int) -> tuple[int, list[int], int]:
    """Tokens of the cache, the layers of each stage, and bytes that a token takes in all of the model."""
    shape = forecast.shape(config)
    options = RuntimeOptions(dtype="bfloat16", max_model_len=512)
    asked = replace(rank_forecast.wanted(shape, options, "bfloat16", 64 * GIB), room_bytes=room_bytes)
    layout = Layout(tensor=1, stages=stages)
    cut = layouts._cut(shape, asked, layout)
    return layouts.kv_tokens(shape, asked, layout), [*map(len, cut)], asked.one.kv_bytes_per_token


def test_a_stage_with_a_whole_cache_group_takes_as_much_of_a_token_as_all_layers() -> None:
    layer_bytes = 2 * (2 * 1024 * 1024 + 2 * 512 * 1024 + 3 * 1024 * 4096 + 4 * 1024 + 2 * 128)
    table_bytes = 2 * 1024 * 1001
    tokens, lengths, per_token = over_stages(GEMMA, 2, GIB)
    assert (lengths, per_token) == ([6, 6], 6 * 2 * 2048)
    assert tokens == (GIB - 6 * layer_bytes - table_bytes) // per_token
    tokens, lengths, _ = over_stages(GEMMA, 12, GIB)
    assert (lengths, tokens) == ([1] * 12, (GIB - layer_bytes - table_bytes) // (per_token // 2))


def test_a_layer_that_is_larger_than_others_has_fewer_beside_it() -> None:
    shape = forecast.shape(LATENTS)
    dense, sparse = shape.layer_bytes("bfloat16", "auto")[:2]
    assert 8 < dense / sparse < 9
    tokens, lengths, per_token = over_stages(LATENTS, 2, 4 * GIB)
    assert lengths[0] < 9
    heaviest = max(dense + (lengths[0] - 1) * sparse + 2 * 1024 * 100_001, lengths[1] * sparse)
    assert tokens == (4 * GIB - heaviest) // (per_token * lengths[1] // 24)


def test_no_stage_begins_with_a_layer_that_reads_what_the_one_before_it_reads() -> None:
    """Of Falcon-H1 a layer is two here: so many stages as there are layers of both."""
    halves = CONFIG | {"model_type": "falcon_h1", "num_experts": 0, "num_hidden_layers": 3, "mamba_d_ssm": 2048}
    shape = forecast.shape(halves)
    assert (shape.layers, shape.joined) == (6, {1, 3, 5})
    assert max(one.stages for one in layouts.possible(shape, 6)) == 3
    assert over_stages(halves, 3, 4 * GIB)[1] == [2, 2, 2]
    with pytest.raises(ValueError, match="3 layers are fewer than 4 stages"):
        over_stages(halves, 4, 4 * GIB)


def test_the_smallest_layout_that_fits_is_chosen() -> None:
    weights = wanted(GIB).one.weights_bytes
    by_layout = found(weights * 4 // 5)
    (chosen,) = (one for one in by_layout.values() if one.chosen)
    assert (chosen.layout.devices, chosen.fits) == (2, True)
    alone = by_layout[Layout(tensor=1, stages=1)]
    assert (alone.fits, alone.tpot_s, alone.price_per_million) == (False, 0.0, 0.0)
    assert not any(one.chosen for one in found(1 << 20).values())


def test_an_objective_is_met_by_a_layout_or_by_none() -> None:
    room = 16 * GIB
    times = {layout.devices: one.ttft_s for layout, one in found(room).items() if layout.stages == 1}
    assert times[1] > 0
    (first,) = (one for one in found(room, ttft_s=times[1] * 1.01).values() if one.chosen)
    assert first.layout.devices == 1
    assert not any(one.chosen for one in found(room, ttft_s=1e-6).values())


def test_ranks_shorten_tokens_stages_prompts_and_the_price_counts_devices() -> None:
    """On a device that is slow enough that what is exchanged matters little."""
    slow = replace(roofline(), card=Card(memory_bytes_per_s=10**11, flops_per_s=10**12))
    asked = wanted(16 * GIB, price_per_hour=3.0)
    told = {one.layout: one for one in layouts.forecasts(SHAPE, asked, layouts.possible(SHAPE, 4), slow)}
    one, ranks, stages = (told[Layout(tensor=tensor, stages=of)] for tensor, of in ((1, 1), (2, 1), (1, 2)))
    assert ranks.tpot_s < 0.7 * one.tpot_s
    assert one.tpot_s < stages.tpot_s < 1.1 * one.tpot_s
    assert 0.5 < stages.ttft_s / one.ttft_s < 0.65
    assert stages.price_per_million == pytest.approx(2 * 3.0 / 3600 / stages.batch_tokens_per_s * 1e6)


def exchanged(layout: Layout, tokens: int, *, node_devices: int = 8) -> float:
    """Over links of 100 GB/s and a network of 10 GB/s."""
    linked = replace(roofline(), card=replace(CARD, link_bytes_per_s=10**11))
    asked = wanted(16 * GIB, network_bytes_per_s=1e10, node_devices=node_devices)
    return layouts._exchange_s(linked, asked, layout, tokens)


@pytest.mark.parametrize(
    ("tensor", "stages", "node_devices", "want_s"),
    [
        (1, 1, 8, 0.0),
        # 48 sums of 10 us and a state of 2 MiB, of which half is moved twice
        (2, 1, 8, 48 * (1e-5 + 2_097_152 / 1e11)),
        (2, 1, 1, 48 * (1e-5 + 2_097_152 / 1e10)),
        (4, 1, 8, 48 * (1e-5 + 1.5 * 2_097_152 / 1e11)),
        # two states around, both by the network where each stage is a node
        (1, 2, 8, 2 * (1e-5 + 2_097_152 / 1e11)),
        (1, 2, 1, 2 * (1e-5 + 2_097_152 / 1e10)),
        # four stages on two nodes: two hops within them
        (1, 4, 2, 4e-5 + 2 * 2_097_152 / 1e10 + 2 * 2_097_152 / 1e11),
        # sums stay within a node, states go between both
        (2, 2, 2, 48 * (1e-5 + 2_097_152 / 1e11) + 2 * (1e-5 + 2_097_152 / 1e10)),
    ],
)
def test_ranks_exchange_sums_by_links_and_stages_states_by_the_network(
    tensor: int, stages: int, node_devices: int, want_s: float
) -> None:
    found = exchanged(Layout(tensor=tensor, stages=stages), 1024, node_devices=node_devices)
    assert found == pytest.approx(want_s)


def test_blocks_of_a_prompt_are_handed_over_by_all_nodes_of_a_replica() -> None:
    """1,024 tokens of 24 KiB each."""
    asked = wanted(16 * GIB, network_bytes_per_s=1e9, node_devices=1)
    assert asked.one.kv_bytes_per_token == 24_576
    by_devices = {
        one.layout.devices: one.moved_s
        for one in layouts.forecasts(SHAPE, asked, layouts.possible(DENSE, 4), roofline())
    }
    assert by_devices == pytest.approx({1: 1e-5 + 0.025165824, 2: 1e-5 + 0.012582912, 4: 1e-5 + 0.006291456})


def test_the_smallest_that_also_meets_the_time_of_a_token_is_chosen_with_its_price() -> None:
    slow = replace(roofline(), card=Card(memory_bytes_per_s=10**11, flops_per_s=10**12))
    possible = layouts.possible(DENSE, 4)
    times = {one.layout: one.tpot_s for one in layouts.forecasts(DENSE, wanted(16 * GIB), possible, slow)}
    objective = times[Layout(tensor=2, stages=1)] * 1.01
    asked = wanted(16 * GIB, tpot_s=objective, price_per_hour=1.5)
    (chosen,) = (one for one in layouts.forecasts(DENSE, asked, possible, slow) if one.chosen)
    assert (chosen.layout, chosen.price_per_hour) == (Layout(tensor=2, stages=1), 3.0)


def test_without_numbers_of_the_device_only_memory_is_told() -> None:
    told = layouts.forecasts(SHAPE, wanted(16 * GIB), layouts.possible(SHAPE, 2), None)
    assert [(one.fits, one.tpot_s, one.chosen) for one in told[:2]] == [(True, 0.0, True), (True, 0.0, False)]
