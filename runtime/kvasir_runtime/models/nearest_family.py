"""Which family is most like an architecture that none declares, for the sentence that refuses it.

Called by `registry`.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, Final

from kvasir_runtime.models.bert import BERT, MPNET
from kvasir_runtime.models.family import GENERATES, HEADLESS, Family
from kvasir_runtime.models.llama import LLAMA
from kvasir_runtime.models.mamba_hybrids import BAMBA
from kvasir_runtime.models.mixtral import MIXTRAL
from kvasir_runtime.models.nomic_bert import NOMIC_BERT
from kvasir_runtime.models.starcoder2 import STARCODER2

_ALIKE: Final = 3
"""Letters that names of one maker's models begin with."""
_MOST_LETTERS: Final = 64
"""Of a name that are compared, which takes time by their square; those of families have half as many."""
_COMMON: Final = ("gpt", "mini")
"""What names of many makers' models begin with."""
_BY_FIELDS: Final[tuple[tuple[str, Family], ...]] = (
    (r"relative_attention_num_buckets", MPNET),
    (r"type_vocab_size", BERT),
    (r"(mamba|ssm|conv|state|rwkv)_.*|linear_(conv|key)_.*", BAMBA),
    (r".*num_(local_|routed_)?experts|n_routed_experts", MIXTRAL),
    (r"(layer_)?norm_eps(ilon)?", STARCODER2),
    (r"hidden_size|d_model|dim", LLAMA),
)
"""Fields, and a family whose layers have what they are of; the first counts that a config has."""


def nearest(families: Sequence[Family], architecture: str, document: Mapping[str, Any]) -> tuple[Family, str] | None:
    """The most similar family, and "name" or "fields", by which it was found; None where nothing is known.

    document: config.json, whose model_type is a name too; its fields count where no names are alike.
    """
    stems = {_stem(family.architecture): family for family in families}
    for name in (_stem(architecture), str(document.get("model_type") or "").lower()):
        if (found := _named(stems, name[:_MOST_LETTERS])) is not None:
            return found, "name"
    parts = (document, *(part for part in document.values() if isinstance(part, Mapping)))
    fields = {str(field).lower() for part in parts for field, value in part.items() if value}
    for pattern, family in _BY_FIELDS:
        if any(re.fullmatch(pattern, field) for field in fields):
            turns = any(field.startswith("rope") for field in fields)
            return (NOMIC_BERT if family is BERT and turns else family), "fields"
    return None


def _stem(architecture: str) -> str:
    stem = architecture.partition("For")[0] if "For" in architecture else architecture.removesuffix(HEADLESS)
    return stem.removesuffix(GENERATES).lower()


def _named(stems: Mapping[str, Family], name: str) -> Family | None:
    """By how names begin, or the longest that is in the other one."""
    best = max(stems, key=lambda stem: _likeness(name, stem))
    if _likeness(name, best)[0] >= max([_ALIKE, *(len(common) + 1 for common in _COMMON if name.startswith(common))]):
        return stems[best]
    return stems[max(within, key=len)] if (within := [stem for stem in stems if stem in name]) else None


def _likeness(one: str, other: str) -> tuple[int, float]:
    """The letters that both begin with, whatever the numbers, then the share of all that they have in common."""
    bare, beside = (re.sub(r"\d+", "0", name) for name in (one, other))
    same = takewhile(lambda letters: letters[0] == letters[1], zip(bare, beside, strict=False))
    return len(list(same)), SequenceMatcher(None, one, other).ratio()
