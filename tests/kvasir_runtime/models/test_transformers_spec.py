"""What the engine takes from a config of transformers, and what it refuses there."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvasir_api.cache_groups import FULL, LayerAttention, sliding
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.transformers_decoder import AttentionCall, Observed
from kvasir_runtime.models.transformers_spec import attentions, decoder_spec, longest_sequence

TYPES = ["sliding_attention", "full_attention"]
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 4096}


def observed(*calls: AttentionCall) -> Observed:
    return Observed(calls=calls, hidden_size=64, vocab_size=320)


def call(**changed: int) -> AttentionCall:
    return AttentionCall(**{"heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 16, "window": 0} | changed)


@pytest.mark.parametrize(
    ("config", "windows", "want"),
    [
        ({}, [0, 0], [FULL, FULL]),
        ({"sliding_window": 8}, [8, 8], [sliding(8), sliding(8)]),
        ({"sliding_window": 8, "use_sliding_window": False}, [0, 0], [FULL, FULL]),
        ({"sliding_window": 8, "layer_types": TYPES}, [8, 0], [sliding(8), FULL]),
        (
            {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 32},
            [0, 0],
            [LayerAttention("chunked", 32), FULL],
        ),
    ],
)
def test_what_layers_see_follows_from_config_and_calls(
    config: dict[str, Any], windows: list[int], want: list[LayerAttention]
) -> None:
    assert attentions(SimpleNamespace(**config), windows) == tuple(want)


@pytest.mark.parametrize(
    ("config", "windows", "why"),
    [
        ({"sliding_window": 8}, [0, 0], "layer 0 has a window of 0 tokens, and by config.json one of 8"),
        ({}, [0, 8], "layer 1 has a window of 8 tokens, and by config.json one of 0"),
        ({"sliding_window": 8, "layer_types": TYPES}, [8, 8], "layer 1 has a window of 8 tokens"),
        (
            {"layer_types": ["conv", "full_attention"]},
            [0, 0],
            "layer_types must name full_attention, sliding_attention",
        ),
        ({"layer_types": ["full_attention"]}, [0, 0], "for each of 2 layers"),
    ],
)
def test_a_window_that_one_names_and_the_other_does_not_is_refused(
    config: dict[str, Any], windows: list[int], why: str
) -> None:
    with pytest.raises(ModelError, match=why):
        attentions(SimpleNamespace(**config), windows)


def test_the_cache_is_sized_by_what_layers_give_attention() -> None:
    config = SimpleNamespace(intermediate_size=None)
    spec = decoder_spec(config, observed(call(head_dim=24), call(head_dim=24, value_dim=12)))
    assert (spec.num_kv_heads, spec.head_dim, spec.hidden_size, spec.vocab_size) == (2, 24, 64, 320)
    assert spec.kv_bytes_per_token(2) == 2 * 2 * 2 * 24 * 2
    with pytest.raises(ModelError, match=r"keys of different sizes \(2 x 16, 2 x 24\)"):
        decoder_spec(config, observed(call(), call(head_dim=24)))


@pytest.mark.parametrize(
    ("ropes", "wanted", "want"),
    [
        (None, 0, 8192),
        ({"rope_type": "yarn", "factor": 4.0}, 8000, 8000),
        (LONGROPE, 0, 4096),
        (LONGROPE, 512, 512),
        ({"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default"}}, 0, 4096),
        ({"rope_type": "dynamic"}, 0, 2048),
    ],
)
def test_the_longest_sequence_is_one_with_the_same_angles(ropes: Any, wanted: int, want: int) -> None:
    config = SimpleNamespace(rope_parameters=ropes, max_position_embeddings=2048)
    assert longest_sequence(config, wanted, 8192) == want


def test_a_sequence_whose_angles_depend_on_its_length_is_refused() -> None:
    config = SimpleNamespace(rope_parameters=LONGROPE, max_position_embeddings=131_072)
    with pytest.raises(
        ModelError, match=r"--max-model-len 4097: beyond 4096 tokens rotary embedding longrope .* set at most 4096"
    ):
        longest_sequence(config, 4097, 131_072)


def test_a_sequence_ends_before_scores_are_scaled_by_places_in_a_step() -> None:
    config = SimpleNamespace(rope_parameters=None, attn_temperature_tuning=True, floor_scale=8192)
    assert longest_sequence(config, 0, 131_072) == 8191
