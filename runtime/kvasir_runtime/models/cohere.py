"""Command R: attention and feed-forward layers side by side behind one norm of the mean too, pairs of neighbours turn.

Command R+ has norms of queries and keys, each head its own. Command R7B has windows in three layers of four, and the
fourth does not know positions.
"""

from dataclasses import replace

from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places
from kvasir_runtime.models.rope import rope_spec


def _cohere(config: ModelConfig, family: str = "cohere") -> DecoderSpec:
    rope, bias = replace(rope_spec(config), interleaved=True), config.attention_bias
    made = decoder_spec(config, family, qkv_bias=bias, output_bias=bias, rope=rope, tied=True)
    made = replace(made, norm="layer", parallel=True, shared_norm=True, logit_scale=config.logit_scale or 1.0)
    return replace(made, qk_norm=True, own_qk_norm=True) if config.use_qk_norm else made


def _cohere2(config: ModelConfig) -> DecoderSpec:
    made = _cohere(config, "cohere2")
    return replace(made, rope=RopeSpec(kind="none", interleaved=True), local_rope=made.rope)


COHERE = Family(architecture="CohereForCausalLM", models="Command R, R+, Aya", spec=_cohere, places=usual_places)
COHERE2 = Family(architecture="Cohere2ForCausalLM", models="Command R7B, Command A", spec=_cohere2, places=usual_places)
