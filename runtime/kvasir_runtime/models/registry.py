"""All families this runtime serves, found by the architecture that a config.json names."""

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.models.alibi import BAICHUAN, BLOOM, MPT
from kvasir_runtime.models.apertus import APERTUS
from kvasir_runtime.models.bert import BERT, CAMEMBERT, DISTILBERT, JINA_XLM_ROBERTA, MPNET, ROBERTA, XLM_ROBERTA
from kvasir_runtime.models.cohere import COHERE, COHERE2
from kvasir_runtime.models.config import ModelConfig, read_config, read_document
from kvasir_runtime.models.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from kvasir_runtime.models.ernie import ERNIE, ERNIE_MOE
from kvasir_runtime.models.exaone import EXAONE4
from kvasir_runtime.models.falcon import FALCON
from kvasir_runtime.models.falcon_h1 import FALCON_H1
from kvasir_runtime.models.family import GENERATES, HEADLESS, Family
from kvasir_runtime.models.gemma import GEMMA2, GEMMA3
from kvasir_runtime.models.glm import GLM, GLM4, GLM4_MOE
from kvasir_runtime.models.gpt_oss import GPT_OSS
from kvasir_runtime.models.granite import GRANITE, GRANITE_MOE
from kvasir_runtime.models.gte import GTE
from kvasir_runtime.models.hunyuan import HUNYUAN, HUNYUAN_MOE
from kvasir_runtime.models.internlm import INTERNLM2, INTERNLM3
from kvasir_runtime.models.jina_bert import JINA_BERT
from kvasir_runtime.models.llama import AFM, LLAMA, SEED_OSS
from kvasir_runtime.models.llama4 import LLAMA4
from kvasir_runtime.models.mamba2 import MAMBA2
from kvasir_runtime.models.mamba_hybrids import BAMBA, GRANITE4
from kvasir_runtime.models.mistral import MISTRAL
from kvasir_runtime.models.mixtral import MIXTRAL
from kvasir_runtime.models.modernbert import MODERNBERT
from kvasir_runtime.models.nemotron_h import NEMOTRON_H
from kvasir_runtime.models.nomic_bert import NOMIC_BERT
from kvasir_runtime.models.olmo2 import OLMO2, OLMO3, OLMOE
from kvasir_runtime.models.phi3 import PHI3
from kvasir_runtime.models.phimoe import PHIMOE
from kvasir_runtime.models.qwen2 import QWEN2
from kvasir_runtime.models.qwen2_moe import QWEN2_MOE
from kvasir_runtime.models.qwen3 import QWEN3
from kvasir_runtime.models.qwen3_moe import QWEN3_MOE
from kvasir_runtime.models.qwen3_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from kvasir_runtime.models.sigmoid_experts import DOTS1, MINIMAX_M2, SOLAR_OPEN
from kvasir_runtime.models.smollm3 import SMOLLM3
from kvasir_runtime.models.starcoder2 import STARCODER2

DENSE: Final = (
    *(LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, PHI3, GRANITE, GLM, GLM4, INTERNLM2, INTERNLM3, OLMO2),
    *(EXAONE4, SMOLLM3, HUNYUAN, AFM, APERTUS, MAMBA2),
    *(OLMO3, COHERE, COHERE2, STARCODER2, FALCON, ERNIE, SEED_OSS, MPT, BLOOM, BAICHUAN, BAMBA, FALCON_H1, QWEN3_5),
)
SPARSE: Final = (
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
    QWEN3_NEXT,
    QWEN3_5_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GLM4_MOE,
    GLM4_MOE_LITE,
    GPT_OSS,
    OLMOE,
    LLAMA4,
    GRANITE_MOE,
    GRANITE4,
    NEMOTRON_H,
    DOTS1,
    SOLAR_OPEN,
    MINIMAX_M2,
    HUNYUAN_MOE,
    ERNIE_MOE,
    PHIMOE,
)
ENCODERS: Final = (
    *(BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, MPNET, MODERNBERT, NOMIC_BERT, JINA_BERT),
    *(JINA_XLM_ROBERTA, GTE),
)
FAMILIES: Final = (*DENSE, *SPARSE, *ENCODERS)
_ALIKE: Final = 3
"""Letters that names of one maker's models begin with."""
_COMMON: Final = "gpt"
"""What names of many makers' models begin with."""
_ELSE: Final = "others may be served slowly through transformers (pip install 'kvasir-serving[transformers]')"


def read(model: Path, overrides: str = "") -> tuple[ModelConfig, Family]:
    """The config of a model and its family. Raises as `read_config`; of an architecture that no family has it says so,
    whatever else its config lacks.
    """
    named = named_in(read_document(model, overrides))
    if named and declared(named) is None:
        raise ModelError(f"{undeclared(named)}; {_ELSE}")
    config = read_config(model, overrides)
    return config, family_of(config)


def family_of(config: ModelConfig) -> Family:
    """The family that serves a config. Raises ModelError with the nearest by name, and all that exist."""
    family = declared(config.architectures)
    if family is None:
        raise ModelError(f"{undeclared(config.architectures)}; {_ELSE}")
    return family


def named_in(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The architectures of a config.json; none where they are no names, which `read_config` refuses."""
    names = document.get("architectures")
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def declared(architectures: Sequence[str]) -> Family | None:
    """The first that one of these names means."""
    return next((family for family in FAMILIES if not set(family.architectures).isdisjoint(architectures)), None)


def undeclared(architectures: Sequence[str]) -> str:
    """A sentence about names that no family has."""
    near = nearest(architectures[0])
    nearby = f"; the nearest by name is {near.architecture} ({near.models})" if near else ""
    supported = ", ".join(family.architecture for family in FAMILIES)
    return f"architecture {', '.join(architectures)} is not supported{nearby}; supported are {supported}"


def nearest(architecture: str) -> Family | None:
    """The family whose name has most in common with an architecture's, None where all begin differently."""
    stem = architecture.partition("For")[0].lower()
    stems = (family.architecture.removesuffix(GENERATES).removesuffix(HEADLESS) for family in FAMILIES)
    names = dict(zip((name.lower() for name in stems), FAMILIES, strict=True))
    best = max(names, key=lambda name: _likeness(stem, name))
    least = _ALIKE + 1 if stem.startswith(_COMMON) else _ALIKE
    return names[best] if _likeness(stem, best)[0] >= least else None


def _likeness(one: str, other: str) -> tuple[int, float]:
    """The letters that both begin with, whatever the numbers, then the share of all that they have in common."""
    bare, beside = (re.sub(r"\d+", "0", name) for name in (one, other))
    same = next(
        (at for at, (a, b) in enumerate(zip(bare, beside, strict=False)) if a != b), min(len(bare), len(beside))
    )
    return same, SequenceMatcher(None, one, other).ratio()
