"""Values of the option `speculation`: ways to draft tokens ahead, or a model that drafts."""

import re
from dataclasses import dataclass
from typing import Any, Final

from kvasir_api.option_fields import option

WAYS: Final = ("off", "auto", "ngram", "suffix", "mtp")
"""Any other value is a model."""

OPTION: Final[Any] = option(
    "off",
    "Draft tokens ahead, and verify them in one step; answers stay the same. auto drafts from what the text repeats, as many as pay, or none; ngram and suffix do so in every step. mtp drafts with the layer for that in the checkpoint (DeepSeek-V3, GLM-4.5, Qwen3-Next), which auto uses too. MODEL is a smaller model, best of the same vocabulary, or an EAGLE-3 head of the model, which drafts where that pays: a directory, or hf://ORG/NAME@REVISION. CPU only.",
    metavar="off|auto|ngram|suffix|mtp|MODEL",
    min_length=1,
    max_length=512,
)
"""The field of the runtime's options."""

PATTERN: Final = "^(off|auto|ngram|suffix|mtp|(hf:/)?/[A-Za-z0-9._/-]+(@[A-Za-z0-9][A-Za-z0-9._/-]*)?)$"

RULE: Final[dict[str, Any]] = {
    "rule": f"!has(self.speculation) || self.speculation.matches('{PATTERN}')",
    "message": "runtime.speculation must be off, auto, ngram, suffix, mtp, hf://ORG/NAME@REVISION or the absolute path of a directory in the pod",
    "fieldPath": ".speculation",
}
"""Of the CRD: a path of a pod is absolute, and nothing in it is expanded. Not by orValue, whose length the API server does
not know: it refuses the definition for what such a rule may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelSize:
    """What a draft model takes: weights, and its keys and values of each token that the model's cache holds."""

    weights_bytes: int
    kv_bytes_per_token: int


NO_DRAFTER: Final = DraftModelSize(weights_bytes=0, kv_bytes_per_token=0)


def reads_own_layer(speculation: str, *, ranks: int) -> bool:
    """Whether the layer that drafts is read where the model's own checkpoint has one. ranks: that compute the model.

    With several of them no head can draft: auto leaves it out, and mtp ends the start.
    """
    return speculation == "mtp" or (speculation == "auto" and ranks == 1)


def draft_model(speculation: str) -> str:
    """The model that drafts: a directory or a name on the hub; empty where none does."""
    return "" if speculation in WAYS else speculation


def check_of_service(speculation: str) -> None:
    """Raises ValueError for a value that RULE refuses, of an object from before it or an API server without it."""
    if not re.fullmatch(PATTERN, speculation):
        raise ValueError(RULE["message"])
