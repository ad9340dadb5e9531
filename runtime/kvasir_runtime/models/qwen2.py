"""Qwen2 and Qwen2.5: biases on queries, keys and values only; a sliding window in the upper layers if switched on."""

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import FULL, SLIDING, Family, decoder_spec, usual_places, windows_of


def windows(config: ModelConfig) -> tuple[int, ...]:
    """Window of each layer: sliding from max_window_layers on, or as layer_types says; none unless switched on."""
    num_layers, types = config.num_hidden_layers, config.layer_types
    if not config.use_sliding_window or not config.sliding_window:
        return (0,) * num_layers
    if types is None:
        first = 28 if config.max_window_layers is None else config.max_window_layers  # the family's own default
        types = tuple(SLIDING if i >= first else FULL for i in range(num_layers))
    return windows_of(config, types)


def _spec(config: ModelConfig) -> DecoderSpec:
    return decoder_spec(config, windows=windows(config), qkv_bias=True)


QWEN2 = Family(architecture="Qwen2ForCausalLM", spec=_spec, places=usual_places)
