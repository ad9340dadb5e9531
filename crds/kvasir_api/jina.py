"""Jina's encoders under names of their own in a config.json: they call themselves BERT and XLM-RoBERTa.

Pure functions of documents, called by `hf_config` by way of `family_fields`.
"""

from collections.abc import Mapping
from typing import Any, Final

XLM_ROBERTA: Final = "jina_embeddings_v3"
"""XLM-RoBERTa with the names of flash attention, as transformers calls it."""
ROTARY: Final = "rotary"
"""The position_embedding_type of models whose heads turn, and that have no table of positions."""
_FLASH: Final = "XLMRobertaFlashConfig"
"""A class of the code beside such checkpoints, which only auto_map names."""


def family_of(document: Mapping[str, Any]) -> str:
    """model_type, but for XLM-RoBERTa with the names of flash attention, whose configs have that of another or none."""
    return XLM_ROBERTA if _is_flash(document) else str(document.get("model_type"))


def xlm_roberta(document: dict[str, Any]) -> dict[str, Any]:
    """With architectures as transformers has them; positions are in a table where a config of Jina's does not say."""
    if not _is_flash(document):
        return document
    given = document.get("architectures")
    named = [str(one) for one in given] if isinstance(given, list) else []
    named = [one.replace("XLMRobertaLoRA", "XLMRobertaModel") for one in named]  # the model with adapters
    named = [one.replace("XLMRoberta", "JinaEmbeddingsV3") for one in named]
    return {"position_embedding_type": "absolute"} | document | {"model_type": XLM_ROBERTA, "architectures": named}


def bert(document: dict[str, Any]) -> dict[str, Any]:
    """JinaBERT. Which of its two kinds a config is of, only the name of the code that it names says."""
    if document.get("position_embedding_type") != "alibi":
        return document
    return document | {"model_type": "jina_bert", "use_qk_norm": "-qk-" in str(document.get("auto_map"))}


def _is_flash(document: Mapping[str, Any]) -> bool:
    return _FLASH in str(document.get("auto_map"))
