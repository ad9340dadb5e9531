"""What a config.json says of its layers, for those who have no model to ask."""

import pytest

from kvasir_api import layer_types
from kvasir_api.cache_groups import FULL, LayerAttention, sliding

W = sliding(8)
STATE = LayerAttention("state")
BOTH = LayerAttention("bidirectional")
NEAR_8, NEAR_64 = LayerAttention("bidirectional", 8), LayerAttention("bidirectional", 64)


@pytest.mark.parametrize(
    ("family", "fields", "want"),
    [
        ("llama", {"sliding_window": 8}, (FULL,) * 4),
        ("unheard-of", {"sliding_window": 8}, (FULL,) * 4),
        ("mistral", {"sliding_window": None}, (FULL,) * 4),
        ("mistral", {"sliding_window": 8}, (W,) * 4),
        ("mixtral", {"sliding_window": 8}, (W,) * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": False}, (FULL,) * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True}, (FULL,) * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (FULL, FULL, FULL, W)),
        ("qwen3_moe", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (W,) * 4),
        (
            "qwen3",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (W, FULL, W, FULL),
        ),
        ("qwen2", {"sliding_window": 8, "use_bidirectional_attention": True}, (BOTH,) * 4),
        ("mistral", {"use_bidirectional_attention": True}, (BOTH,) * 4),
        (
            "gemma3_text",
            {"sliding_window": 16, "sliding_window_pattern": 3, "use_bidirectional_attention": True},
            (NEAR_8, NEAR_8, BOTH, NEAR_8),
        ),
        ("gemma2", {"sliding_window": None}, (sliding(4096), FULL, sliding(4096), FULL)),
        ("deepseek_v2", {"sliding_window": 8}, (LayerAttention("latent"),) * 4),
        ("qwen3_next", {}, (STATE, STATE, STATE, FULL)),
        ("qwen3_next", {"full_attention_interval": 2, "sliding_window": 8}, (STATE, FULL, STATE, FULL)),
        ("qwen3_next", {"layer_types": ["full_attention", "linear_attention"] * 2}, (FULL, STATE, FULL, STATE)),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 3}, (W, W, FULL, W)),
        ("bert", {}, (BOTH,) * 4),
        ("xlm-roberta", {"sliding_window": 8}, (BOTH,) * 4),
        ("modernbert", {}, (BOTH, NEAR_64, NEAR_64, BOTH)),
        ("modernbert", {"sliding_window": 16, "full_attention_interval": 2}, (BOTH, NEAR_8, BOTH, NEAR_8)),
        ("modernbert", {"layer_types": ["sliding_attention", "full_attention"] * 2}, (NEAR_64, BOTH) * 2),
    ],
)
def test_attentions(family: str, fields: dict[str, object], want: tuple[LayerAttention, ...]) -> None:
    assert layer_types.attentions(family, 4, **fields) == want  # type: ignore[arg-type]


@pytest.mark.parametrize("types", [["full_attention"], ["full_attention", "sliding_attention", "mamba", "mamba"]])
def test_unknown_types_and_too_few_are_told(types: list[str]) -> None:
    with pytest.raises(ValueError, match="layer_types must name full_attention or sliding_attention for each of 4"):
        layer_types.attentions("gemma2", 4, layer_types=types)
