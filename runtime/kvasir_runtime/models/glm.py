"""GLM-4: half of each head turns, in pairs of neighbours; the releases of 2025 have norms behind layers too.

ChatGLM 2 and 3, and the first release of GLM-4, have the same layers under names of their own.

GLM-4.5 has experts chosen as those of DeepSeek-V3, and halves that turn.
"""

import json
from dataclasses import replace
from typing import Final

from kvasir_api import chatglm
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places
from kvasir_runtime.models.moe import deepseek_experts, expert_places
from kvasir_runtime.models.mtp_names import DEEPSEEK_MTP
from kvasir_runtime.models.rope import rope_spec

_NAMES: Final = TensorNames(
    gate_up="mlp.gate_up_proj",
    attention_outer_norm="post_self_attn_layernorm",
    mlp_outer_norm="post_mlp_layernorm",
)
_CHAT: Final = TensorNames(
    embedding="transformer.embedding.word_embeddings",
    layer="transformer.encoder.layers.{}.",
    qkv="self_attention.query_key_value",
    output="self_attention.dense",
    gate_up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    norm="transformer.encoder.final_layernorm",
    head="transformer.output_layer",
)


def _glm(config: ModelConfig) -> DecoderSpec:
    rope = replace(rope_spec(config), interleaved=config.rope_interleave is not False)
    return decoder_spec(config, "glm", qkv_bias=config.attention_bias, rope=rope)


def _chat(config: ModelConfig) -> DecoderSpec:
    for field, given, served in (
        ("multi_query_attention", config.multi_query_attention, True),
        ("rmsnorm", config.rmsnorm, True),
        ("post_layer_norm", config.post_layer_norm, True),
        ("add_bias_linear", config.add_bias_linear, False),
        ("apply_residual_connection_post_layernorm", config.apply_residual_connection_post_layernorm, False),
    ):
        if given not in (None, served):
            raise ModelError(f"config.json: {field} {given} of ChatGLM is not supported; expected {served}")
    ratio = config.rope_ratio or 1
    if ratio != 1 and config.rope_theta is None and not (config.rope_scaling or config.rope_parameters):
        base = json.dumps({"rope_theta": chatglm.BASE * ratio})
        divided = json.dumps({"rope_scaling": {"rope_type": "linear", "factor": ratio}})
        raise ModelError(
            f"config.json: rope_ratio {ratio:g} multiplies the base in ChatGLM 3 and divides positions in ChatGLM 2,"
            f" and _name_or_path names neither; say --hf-overrides '{base}' for the former, '{divided}' for the latter"
        )
    return _glm(config)


def _chat_places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _CHAT)


def _glm4(config: ModelConfig) -> DecoderSpec:
    return replace(_glm(config), outer_norms=True)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES)


def _glm4_moe(config: ModelConfig) -> DecoderSpec:
    experts = deepseek_experts(config, "GLM-4.5", grouped=True, sigmoid=True)
    bias, normed = config.attention_bias, config.use_qk_norm is True
    return decoder_spec(config, "glm4_moe", qkv_bias=bias, qk_norm=normed, experts=experts)


def _expert_places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec) | expert_places(spec, shared="shared_experts")


GLM = Family(architecture="GlmForCausalLM", models="GLM-4-9B", spec=_glm, places=_places)
CHAT_GLM = Family(
    architecture="ChatGLMForCausalLM",
    models="ChatGLM 2 and 3, GLM-4-9B as first released, all named `ChatGLMModel`",
    spec=_chat,
    places=_chat_places,
    unused=("transformer.rotary_pos_emb.",),
)
GLM4 = Family(architecture="Glm4ForCausalLM", models="GLM-4-0414, GLM-Z1", spec=_glm4, places=_places)
GLM4_MOE = Family(
    architecture="Glm4MoeForCausalLM",
    models="GLM-4.5, 4.5-Air, 4.6, 4.7",
    experts="8 of 128 or 160 and a shared one, by sigmoids with a bias of the choice",
    spec=_glm4_moe,
    places=_expert_places,
    drafts=DEEPSEEK_MTP,
)
