"""How many experts the layers of a family have, how many a token goes to, and how large they are.

Pure arithmetic on the fields of a flattened config.json, for the forecast.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kvasir_api.hf_config import count, count_or_zero

_CHOICE_BIASES: Final = (
    *("deepseek_v3", "glm4_moe", "glm4_moe_lite", "dots1", "solar_open", "minimax_m2", "ernie4_5_moe", "nemotron_h"),
)
"""Families whose experts have a bias each in the choice."""
NOTHING_TO_SHARE: Final = "the model has no experts that ranks could share: let several replicas serve it"

Parallelism = Literal["tensor", "data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayers:
    """Which layers have experts, how many each has and a token goes to, their size and that of the shared one; all 0 without.

    biases: numbers of those of a layer, and of its router. products: matrices of one.
    latent: width of the space in which they compute, 0 for that of the hidden state.
    """

    layers: frozenset[int] = frozenset()
    number: int = 0
    chosen: int = 0
    size: int = 0
    shared: int = 0
    biases: int = 0
    products: int = 3
    latent: int = 0


def of(config: Mapping[str, Any], layers: int) -> ExpertLayers:
    """layers: of the decoder. Raises ValueError that names a missing or senseless field."""
    field = _number_field(config)
    if not field:
        return ExpertLayers()
    number, chosen = count(config, field), count(config, "num_experts_per_tok")
    step, dense = count(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    first = count_or_zero(config, "first_k_dense_replace")
    sizes = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    size, family = count(config, sizes), config.get("model_type")
    sparse = frozenset(layer for layer in range(first, layers) if (layer + 1) % step == 0 and layer not in dense)
    each = 1 if config.get("topk_method") == "noaux_tc" or family in _CHOICE_BIASES else 0
    each = 1 + 2 * size + count(config, "hidden_size") if family == "gpt_oss" else each
    return ExpertLayers(
        layers=sparse,
        number=number,
        chosen=min(chosen, number),
        size=size,
        biases=number * each,
        latent=count_or_zero(config, "moe_latent_size") if family == "nemotron_h" else 0,
        products=2 if family == "nemotron_h" else 3,
        shared=count_or_zero(config, "shared_expert_intermediate_size")
        or count_or_zero(config, "n_shared_experts") * count(config, sizes),
    )


def part(experts: int, size: int, *, ranks: int, whole: bool) -> tuple[int, int]:
    """Experts of a layer that the first of several ranks has, which has most, and intermediate numbers of each.

    experts: of the layer, at least 1. size: intermediate numbers of one. whole: ranks have some experts, and not a part of each.
    Raises ValueError, which says why they cannot be divided so.
    """
    if not whole:
        return experts, divided(size, ranks, "numbers of each expert")
    if experts < ranks:
        raise ValueError(f"{experts} experts are fewer than {ranks} ranks")
    return -(-experts // ranks), size


def divided(size: int, ranks: int, what: str) -> int:
    """Of so many of something, what each rank has. Raises ValueError where they cannot be divided."""
    if size % ranks:
        raise ValueError(f"{size} {what} cannot be divided among {ranks} ranks")
    return size // ranks


def option(parallelism: Parallelism, ranks: int, *, whole: bool) -> str:
    """By which there are several ranks, for messages."""
    return f"--{parallelism}-parallel-size {ranks}{' with --enable-expert-parallel' if whole else ''}"


def _number_field(config: Mapping[str, Any]) -> str:
    """Where the number of experts is; empty without."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((name for name in names if config.get(name)), "")
