"""Reads experts of a checkpoint once more, for copies of them on other ranks than their own. Called by `load_model`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from kvasir_runtime import arriving
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.expert_copies import ExpertCopies
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family
from kvasir_runtime.models.sharded_places import copied_places
from kvasir_runtime.runner.startup.model_parts import ModelPart
from kvasir_runtime.weights.loader import load


def copies(
    folder: Path, family: Family, config: ModelConfig, part: ModelPart, ops: Ops, dtype: torch.dtype
) -> ExpertCopies | None:
    """Of this rank, on a processor; None where there is no room for any."""
    if part.room is None or ops.collectives is None or part.spec.experts is None:
        return None
    # What comes while it is loaded is whole by the time when experts are read again.
    read = partial(_read, arriving.real(folder), family, family.spec(config), part, ops, dtype)
    return ExpertCopies(part.room, ops.collectives, part.spec.experts.first[0], read)


def _read(
    folder: Path,
    family: Family,
    whole: DecoderSpec,
    part: ModelPart,
    ops: Ops,
    dtype: torch.dtype,
    wanted: Mapping[int, tuple[int, ...]],
) -> dict[str, Weight]:
    """Tensors of the experts of each layer, in the formats in which the part has its own."""
    assert part.spec.experts is not None
    shapes = dict[str, tuple[int, ...]]()
    for name, (rows, *columns) in parameter_shapes(part.spec).items():
        layer, is_expert, _ = name.removeprefix("layers.").partition(".experts.")
        if is_expert and int(layer) in wanted:
            shapes[name] = (rows // part.spec.experts.num_held * len(wanted[int(layer)]), *columns)
    if not shapes:
        return {}
    formats = {name: format_ for name, format_ in part.formats.items() if name in shapes}
    places, device = copied_places(family.places, whole, wanted), torch.device("cpu")
    return load(folder, places, shapes, dtype, device, lambda *_: None, formats, ops.quantize, unused=family.unused)
