"""GPT-OSS: every second layer has a window, each head a sink, and experts a clamped gate and biases.

Checkpoints have the experts' matrices in MXFP4 or in full, gates and ups of an expert in turn, which
`weights.stacked_experts` gives names of their own.
"""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places, whole
from kvasir_runtime.models.moe import experts_spec

GATE: Final = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
"""Of the clamped gate, as `kernels.act_and_mul` computes it."""


def _spec(config: ModelConfig) -> DecoderSpec:
    for field, served in GATE.items():
        if (value := getattr(config, field)) not in (None, served):
            raise ModelError(f"config.json: {field} {value} of GPT-OSS is not supported; expected {served}")
    experts = experts_spec(config, intermediate_size=config.intermediate_size, renormalised=True)
    experts = replace(experts, activation="clamped", bias=True)
    bias = config.attention_bias
    return replace(decoder_spec(config, "gpt_oss", qkv_bias=bias, output_bias=bias, experts=experts), sinks=True)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    places, experts, hidden = usual_places(spec), spec.experts, spec.hidden_size
    assert experts is not None
    inner = experts.intermediate_size
    in_turn = (*range(0, 2 * inner, 2), *range(1, 2 * inner, 2))
    for layer in range(spec.num_layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        places[theirs + "self_attn.sinks"] = whole(ours + "sinks", spec.num_heads)
        places[theirs + "mlp.router.weight"] = whole(ours + "router", experts.num_experts, hidden)
        places[theirs + "mlp.router.bias"] = whole(ours + "router_bias", experts.num_experts)
        for expert in range(experts.num_experts):
            each, first = f"{theirs}mlp.experts.{expert}.", 2 * expert * inner
            for kind, width in (("weight", (hidden,)), ("bias", ())):
                both = Place(tensor=f"{ours}experts.gate_up.{kind}", first_row=first, shape=(2 * inner, *width))
                places[f"{each}gate_up_proj.{kind}"] = replace(both, head_order=in_turn, sections=(inner, inner))
            down = ours + "experts.down."
            places[each + "down_proj.weight"] = Place(
                tensor=down + "weight", first_row=expert * hidden, shape=(hidden, inner)
            )
            places[each + "down_proj.bias"] = Place(tensor=down + "bias", first_row=expert * hidden, shape=(hidden,))
    return places


GPT_OSS = Family(
    architecture="GptOssForCausalLM",
    models="gpt-oss-20b, gpt-oss-120b",
    experts="4 of 32 or 128, with biases and a clamped gate; see [gpt-oss](#gpt-oss)",
    spec=_spec,
    places=_places,
)
