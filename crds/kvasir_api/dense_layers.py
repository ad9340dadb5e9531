"""What dense layers of a family have beside the matrices of attention: norms, biases, and products of feed-forward layers.

Pure arithmetic on the fields of a flattened config.json, for the forecast.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvasir_api import layer_types

_HEAD_NORMS: Final = (
    *("qwen3", "qwen3_moe", "gemma3_text", "exaone4", "dots1", "hunyuan_v1_dense", "hunyuan_v1_moe", "apertus"),
    *layer_types.DELTAS,
)
_WIDE_NORMS: Final = ("olmo2", "olmo3", "olmoe", "minimax_m2")
_FOUR_NORMS: Final = ("gemma2", "gemma3_text", "glm4")
_ONE_NORM: Final = ("cohere", "cohere2")
_BERTS: Final = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "jina_embeddings_v3")
"""Every product and every norm has a bias."""
_DOWN: Final = ("jina_bert", "gte")
"""Of the products of feed-forward layers, the last has a bias."""
_BIASED_NORMS: Final = ("starcoder2", "falcon", "bloom", "phimoe", "nomic_bert", "jina_bert", "gte", *_BERTS)
_UNGATED: Final = ("starcoder2", "falcon", "bloom", "mpt", "nemotron_h", "arcee", "apertus", *_BERTS)

_Biases = tuple[str | bool, str | bool, str | bool]
"""Of queries, keys and values, of the output of attention, and of feed-forward layers: the field that says, or what is."""
_USUAL: Final[_Biases] = ("attention_bias", "attention_bias", "mlp_bias")
_OF_ATTENTION: Final[_Biases] = ("attention_bias", "attention_bias", False)
_NO_BIASES: Final[_Biases] = (False, False, False)
_BIASES: Final[Mapping[str, _Biases]] = {
    **dict.fromkeys(("mistral", "ministral3", "mixtral", "phi3", "mpt", "baichuan", "nomic_bert"), _NO_BIASES),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "exaone4", "minimax_m2"), _NO_BIASES),
    **dict.fromkeys(("qwen3", "qwen3_moe", "gemma2", "gemma3_text", *layer_types.DELTAS), _OF_ATTENTION),
    **dict.fromkeys(("olmo2", "olmo3", "olmoe", "cohere", "cohere2"), _OF_ATTENTION),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "apertus"), _OF_ATTENTION),
    **dict.fromkeys(
        ("phimoe", "granitemoe", "granitemoeshared", "granitemoehybrid", "llama4_text", "gpt_oss", "dots1"),
        _OF_ATTENTION,
    ),
    **dict.fromkeys(("glm", "chatglm", "glm4", "glm4_moe", "solar_open"), ("attention_bias", False, False)),
    **dict.fromkeys(("bloom", *_BERTS), (True, True, True)),
    **dict.fromkeys(_DOWN, (True, True, False)),
    **dict.fromkeys(("starcoder2", "ernie4_5", "ernie4_5_moe"), ("use_bias",) * 3),
    "falcon": ("bias",) * 3,
    "qwen2": (True, False, False),
    "qwen2_moe": ("qkv_bias", False, False),
    "internlm2": ("bias", "bias", False),
    "internlm3": ("qkv_bias", "bias", "bias"),
    "seed_oss": ("attention_bias", "attention_out_bias", "mlp_bias"),
    "nemotron_h": (False, False, "mlp_bias"),
}
"""What families other than Llama have; the fields of a config that leaves them out are `family_fields.LEFT_OUT`."""

_CURVE: Final = 4
"""Numbers of an activation that are learned in each layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """products: matrices of a feed-forward layer. Numbers in one layer: norms, of the hidden state; head_norms (and sinks of heads) and attention_biases, of those that
    attend; mlp_biases, with what an activation has. last_norm: of the norm behind all layers, and of that of embeddings.
    head_bias: whether a head over the vocabulary has one.
    """

    products: int
    norms: int
    head_norms: int
    attention_biases: int
    mlp_biases: int
    last_norm: int
    head_bias: bool


def of(
    config: Mapping[str, Any], *, hidden: int, intermediate: int, query: int, gate: int, key: int, head_dim: int
) -> DenseLayer:
    """query, gate, key: rows of the projections to queries, to gates of what attention gives, and to keys."""
    family = str(config.get("model_type", ""))
    norms, each = 4 if family in _FOUR_NORMS else 1 if family in _ONE_NORM else 2, hidden
    if family == "falcon" and _norms_are_one(config):
        norms = 1
    if family in _BIASED_NORMS or (family == "modernbert" and config.get("norm_bias")):
        each = 2 * hidden
    head_norms = query + key if family in _WIDE_NORMS else 2 * head_dim if family in _HEAD_NORMS else 0
    if family == "gpt_oss":
        head_norms = query // head_dim
    if family in _ONE_NORM and config.get("use_qk_norm"):
        head_norms = query + key
    if family == "glm4_moe" and config.get("use_qk_norm"):
        head_norms = 2 * head_dim
    if family == "jina_bert" and config.get("use_qk_norm"):
        norms, head_norms = 3, 2 * (query + key)
    products = 2 if family in _UNGATED else 3
    qkv, output, mlp = _biased(config, family)
    own = _CURVE if family == "apertus" else hidden if family in _DOWN else 0
    return DenseLayer(
        products=products,
        norms=norms * each,
        head_norms=head_norms,
        attention_biases=(query + gate + 2 * key if qkv else 0) + (hidden if output else 0),
        mlp_biases=((products - 1) * intermediate + hidden if mlp else 0) + own,
        last_norm=2 * each if family == "bloom" else each,
        head_bias=family == "phimoe" and bool(config.get("lm_head_bias")),
    )


def _biased(config: Mapping[str, Any], family: str) -> tuple[bool, bool, bool]:
    """Whether queries, keys and values have biases, the output of attention, and feed-forward layers."""
    qkv, output, mlp = (bool(config.get(one)) if isinstance(one, str) else one for one in _BIASES.get(family, _USUAL))
    return qkv, output, mlp


def _norms_are_one(config: Mapping[str, Any]) -> bool:
    """Of Falcon: whether attention and feed-forward layers read what one norm gives."""
    if config.get("new_decoder_architecture"):
        return config.get("num_ln_in_parallel_attn") == 1
    return config.get("parallel_attn") is not False
