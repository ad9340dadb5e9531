"""ERNIE 4.5: pairs of neighbours turn; larger models have experts that a softmax and a bias of the choice choose."""

from dataclasses import replace

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import ExpertsSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec
from kvasir_runtime.models.rope import rope_spec


def _dense(config: ModelConfig, family: str = "ernie4_5", experts: ExpertsSpec | None = None) -> DecoderSpec:
    bias, rope = bool(config.use_bias), replace(rope_spec(config), interleaved=True)
    return decoder_spec(
        config, family, qkv_bias=bias, output_bias=bias, mlp_bias=bias, rope=rope, experts=experts, tied=True
    )


def _moe(config: ModelConfig) -> DecoderSpec:
    size = config.moe_intermediate_size
    if size is None:
        raise ModelError("config.json: ERNIE 4.5 with experts needs moe_intermediate_size")
    shared = size * (config.n_shared_experts or 0)
    experts = experts_spec(config, intermediate_size=size, renormalised=True, shared_size=shared)
    return _dense(config, "ernie4_5_moe", replace(experts, shared_gate=False, choice_bias=True))


def _places(spec: DecoderSpec) -> dict[str, Place]:
    choice = "moe_statics.e_score_correction_bias"
    return usual_places(spec) | expert_places(spec, choice=choice, shared="shared_experts")


ERNIE = Family(architecture="Ernie4_5ForCausalLM", models="ERNIE 4.5 0.3B", spec=_dense, places=usual_places)
ERNIE_MOE = Family(
    architecture="Ernie4_5_MoeForCausalLM",
    models="ERNIE 4.5 21B-A3B, 300B-A47B",
    experts="6 or 8 of 64, two shared ones in the smaller; a softmax over all and a bias of the choice choose",
    spec=_moe,
    places=_places,
    unused=("model.mtp_",),
)
