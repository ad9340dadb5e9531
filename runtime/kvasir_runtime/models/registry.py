"""All families this runtime serves, found by the architecture that a config.json names."""

from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.deepseek_v2 import DEEPSEEK_V2
from kvasir_runtime.models.family import Family
from kvasir_runtime.models.gemma import GEMMA2, GEMMA3
from kvasir_runtime.models.llama import LLAMA
from kvasir_runtime.models.mistral import MISTRAL
from kvasir_runtime.models.mixtral import MIXTRAL
from kvasir_runtime.models.qwen2 import QWEN2
from kvasir_runtime.models.qwen2_moe import QWEN2_MOE
from kvasir_runtime.models.qwen3 import QWEN3
from kvasir_runtime.models.qwen3_moe import QWEN3_MOE
from kvasir_runtime.models.qwen3_next import QWEN3_NEXT

FAMILIES: Final = (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, QWEN3_NEXT, GEMMA2, GEMMA3, DEEPSEEK_V2)


def family_of(config: ModelConfig) -> Family:
    """The family that serves a config. Raises ModelError with the list of those that exist."""
    for family in FAMILIES:
        if not set(family.architectures).isdisjoint(config.architectures):
            return family
    supported = ", ".join(family.architecture for family in FAMILIES)
    raise ModelError(f"architecture {', '.join(config.architectures)} is not supported; supported are {supported}")
