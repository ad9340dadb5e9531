"""InternLM 2 and 3: Llama with names of its own; the former has queries, keys and values in one matrix, by group."""

from typing import Final

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places

_NAMES: Final = TensorNames(
    embedding="model.tok_embeddings",
    qkv="attention.wqkv",
    by_group=True,
    output="attention.wo",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    attention_norm="attention_norm",
    mlp_norm="ffn_norm",
    head="output",
)


def _internlm2(config: ModelConfig) -> DecoderSpec:
    return decoder_spec(config, "internlm2", qkv_bias=bool(config.bias), output_bias=bool(config.bias))


def _internlm3(config: ModelConfig) -> DecoderSpec:
    bias = bool(config.bias)
    return decoder_spec(config, "internlm3", qkv_bias=bool(config.qkv_bias), output_bias=bias, mlp_bias=bias)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES)


INTERNLM2 = Family(architecture="InternLM2ForCausalLM", models="InternLM 2, 2.5", spec=_internlm2, places=_places)
INTERNLM3 = Family(architecture="InternLM3ForCausalLM", models="InternLM 3", spec=_internlm3, places=usual_places)
