"""Few models of those that the fakes write, which together have every part of a layer that any has."""

import shutil
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from fakes import checkpoints, family_checkpoints, family_configs, family_documents
from fakes.checkpoints import Shape
from kvasir_api import hf_config
from kvasir_runtime.models.config import checked, read_config
from kvasir_runtime.models.registry import family_of

GROUP = 32
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


def convert(folder: Path, into: Path, rewrite: Callable[..., dict[str, Tensor]]) -> tuple[Path, Path]:
    """A checkpoint with matrices of its layers in fewer bits, and one that has the same numbers in full.

    rewrite: `convert` of a module that rewrites checkpoints, with its style.
    """
    short, whole = (shutil.copytree(folder, into / name) for name in ("short", "whole"))
    names = _matrices(folder)
    assert names
    worth = rewrite(short, names=names)
    with safe_open(folder / "model.safetensors", "pt") as full:
        kept = {name: full.get_tensor(name) for name in full.keys() if name not in worth}  # noqa: SIM118 -- no mapping
    checkpoints.write_weights(whole, kept | {name: one.float() for name, one in worth.items()})
    return short, whole


def _matrices(folder: Path) -> frozenset[str]:
    """What tools rewrite: matrices of layers that are tensors of their own, of whole words and groups of every format.

    AWQ has no index of groups, so that a last one that is cut would be read as an equal part of the row.
    """
    config = read_config(folder)
    family = family_of(config)
    places = family.places(family.spec(config))
    with safe_open(folder / "model.safetensors", "pt") as stored:
        shapes = {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118 -- no mapping
    return frozenset(
        name
        for name, place in places.items()
        if name.endswith(".weight") and place.tensor.startswith("layers.") and place.tensor.endswith(".weight")
        if len(shapes.get(name, ())) == 2 and not shapes[name][0] % 8 and not shapes[name][1] % GROUP
    )
