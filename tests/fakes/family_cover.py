"""Few models of those that the fakes write, which together have every part of a layer that any has."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fakes import checkpoints, family_checkpoints, family_configs, family_documents
from fakes.checkpoints import Shape
from kvasir_api import hf_config
from kvasir_runtime.models.config import checked
from kvasir_runtime.models.registry import family_of

DOCUMENTS = family_documents.documents()


def parts(document: dict[str, Any]) -> frozenset[str]:
    """What layers of a model have that those of Llama have not."""
    config = checked(Path("config.json"), hf_config.flattened(document))
    spec = family_of(config).spec(config)
    named = {f"attention {attention.kind}" for attention in spec.attentions}
    for part in (spec, spec.experts, spec.state, spec.rope):
        for field in fields(part) if part is not None else ():
            value = getattr(part, field.name)
            is_size = isinstance(value, int) and not isinstance(value, bool)
            if field.default is not MISSING and value != field.default and not is_size:
                named.add(f"{type(part).__name__}.{field.name}")
    return frozenset(named)


def covering() -> list[str]:
    """Names of models, few, that have all parts together: each adds most of those that are left."""
    having = {name: parts(document) for name, document in DOCUMENTS.items()}
    left, chosen = set[str]().union(*having.values()), list[str]()
    while left:
        best = max(having, key=lambda name: len(having[name] & left))
        chosen.append(best)
        left -= having[best]
    return chosen


def write(folder: Path, name: str) -> Any:
    """The checkpoint of one of `DOCUMENTS`; what it returns computes the same by transformers, None by `Oracle`."""
    if name in family_configs.MODELS:
        return family_checkpoints.write(folder, name)
    checkpoints.write(folder, Shape(family=name, num_layers=4 if "next" in name else 2, std=0.12))
    return None
