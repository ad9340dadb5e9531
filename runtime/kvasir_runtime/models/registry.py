"""All families this runtime serves, found by the architecture that a config.json names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError, UnservedError
from kvasir_runtime.models.alibi import BAICHUAN, BLOOM, MPT
from kvasir_runtime.models.apertus import APERTUS
from kvasir_runtime.models.bert import BERT, CAMEMBERT, DISTILBERT, JINA_XLM_ROBERTA, MPNET, ROBERTA, XLM_ROBERTA
from kvasir_runtime.models.cohere import COHERE, COHERE2
from kvasir_runtime.models.config import ModelConfig, checked, read_document
from kvasir_runtime.models.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from kvasir_runtime.models.ernie import ERNIE, ERNIE_MOE
from kvasir_runtime.models.exaone import EXAONE4
from kvasir_runtime.models.falcon import FALCON
from kvasir_runtime.models.falcon_h1 import FALCON_H1
from kvasir_runtime.models.family import Family
from kvasir_runtime.models.gemma import GEMMA2, GEMMA3
from kvasir_runtime.models.glm import CHAT_GLM, GLM, GLM4, GLM4_MOE
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
from kvasir_runtime.models.nearest_family import nearest
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
    *(LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, PHI3, GRANITE, CHAT_GLM, GLM, GLM4, INTERNLM2),
    *(INTERNLM3, OLMO2, EXAONE4, SMOLLM3, HUNYUAN, AFM, APERTUS, MAMBA2),
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
_LONGEST: Final = 256
"""Letters of a config's names in a message."""
_ELSE: Final = "others may be served slowly through transformers (pip install 'kvasir-serving[transformers]')"
_INSTEAD: Final = (
    "--model-impl transformers may serve it, slowly and without fields that it does not know"
    " (pip install 'kvasir-serving[transformers]')"
)


def read(model: Path, overrides: str = "") -> tuple[ModelConfig, Family]:
    """The config of a model and its family. Raises as `read_document` and `judged`."""
    path = model if gguf.is_gguf(model) else model / "config.json"
    return judged(path, read_document(model, overrides))


def judged(path: Path, document: Mapping[str, Any]) -> tuple[ModelConfig, Family]:
    """The config that a flattened document is, and its family; path is the file that messages name.

    Raises as `checked`, and UnservedError for an architecture that no family has, whatever else the config lacks, and
    for one whose family refuses the config.
    """
    named = named_in(document)
    if named and declared(named) is None:
        raise UnservedError(undeclared(named, document), _ELSE)
    config = checked(path, document)
    family = family_of(config)
    try:
        family.spec(config)
    except ModelError as error:
        if family.is_encoder or gguf.is_gguf(path):
            raise
        raise UnservedError(str(error), _INSTEAD) from error
    return config, family


def refusal(model: Path, overrides: str = "") -> str:
    """Why no family serves a model; "" where one does, or its config cannot be read."""
    try:
        read(model, overrides)
    except UnservedError as error:
        return error.reason
    except ModelError:
        return ""
    return ""


def family_of(config: ModelConfig) -> Family:
    """The family that serves a config. Raises ModelError with the nearest by name, and all that exist."""
    family = declared(config.architectures)
    if family is None:
        raise UnservedError(undeclared(config.architectures), _ELSE)
    return family


def named_in(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The architectures of a config.json; none where they are no names, which `checked` refuses."""
    names = document.get("architectures")
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def declared(architectures: Sequence[str]) -> Family | None:
    """The first that one of these names means."""
    return next((family for family in FAMILIES if not set(family.architectures).isdisjoint(architectures)), None)


def undeclared(architectures: Sequence[str], document: Mapping[str, Any] = MappingProxyType({})) -> str:
    """A sentence about names that no family has. document: config.json."""
    near = nearest(FAMILIES, architectures[0], document)
    nearby = f"; the nearest by its {near[1]} is {near[0].architecture} ({near[0].models})" if near else ""
    supported = ", ".join(family.architecture for family in FAMILIES)
    return f"architecture {', '.join(architectures):.{_LONGEST}} is not supported{nearby}; supported are {supported}"
