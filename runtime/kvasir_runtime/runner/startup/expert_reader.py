"""Reads experts of a checkpoint once more, for copies of them on other ranks than their own. Called by `load_model`."""

import re
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch

from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError, StartError
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.quantized import QuantFormat
from kvasir_runtime.layers.expert_copies import CopyRoom, ExpertCopies
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.models.family import Family, Place
from kvasir_runtime.models.sharded_places import divided_places, expert_places
from kvasir_runtime.runner.startup import startup_cache_key
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor
from kvasir_runtime.weights.loader import as_stored, load

_OURS: Final = re.compile(r"layers\.(\d+)\.experts\.")
_NUMBERED: Final = re.compile(r".*?\.\d+\.")
_EXPERT: Final = re.compile(r"\.experts\.(\d+)\.")


def files_before(folder: Path, room: CopyRoom | None) -> list[str]:
    """The identity of the files of a checkpoint that is to be loaded; empty where they still come, and without room for
    copies. Raises StartError.
    """
    return [] if room is None or arriving.real(folder) != folder else _identity(folder)


def expert_copies(
    folder: Path,
    files: list[str],
    family: Family,
    whole: DecoderSpec,
    spec: DecoderSpec,
    formats: Mapping[str, QuantFormat],
    room: CopyRoom | None,
    ops: Ops,
    dtype: torch.dtype,
) -> ExpertCopies | None:
    """Of this rank, on a processor; None where there is no room for any. folder: as it was just loaded, so that all of
    its files are there; files: `files_before`. whole: of one process; spec, formats: of this rank. Raises StartError.
    """
    if room is None or ops.collectives is None or spec.experts is None:
        return None
    real = arriving.real(folder)
    read = ExpertReader(
        folder=real,
        files=files or _identity(real),
        family=family,
        whole=whole,
        own=spec,
        formats=formats,
        ops=ops,
        dtype=dtype,
    )
    return ExpertCopies(room, ops.collectives, spec.experts.first[0], read)


@dataclass(frozen=True, slots=True)
class _Layer:
    """What there is of a layer with experts, of all of them: places; shapes, of one expert's tensors; and stored, the
    checkpoint's tensors as of `as_stored`, also others than experts.
    """

    places: dict[str, Place] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    stored: list[CheckpointTensor] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ExpertReader:
    """As `expert_copies` is given them. files: the identity of those that were loaded. What is about the checkpoint as
    a whole is done at the first read: that is in Python, in which no step is computed meanwhile.
    """

    folder: Path
    files: list[str]
    family: Family
    whole: DecoderSpec
    own: DecoderSpec
    formats: Mapping[str, QuantFormat]
    ops: Ops
    dtype: torch.dtype
    layers: dict[int, _Layer] = field(default_factory=dict)

    def __call__(self, layer: int, experts: tuple[int, ...], go_on: Callable[[], None]) -> dict[str, Weight]:
        """As `ReadExperts`, in the formats in which the rank has its own. Raises ModelError, also where the files are
        others than those that were loaded, and OSError.
        """
        self.layers = self.layers or self._layers()
        there, unused = self.layers[layer], ("",)  # all others
        shapes = {name: (len(experts) * rows, *columns) for name, (rows, *columns) in there.shapes.items()}
        formats = {name: self.formats[name] for name in shapes if name in self.formats}
        places, device = expert_places(there.places, self.own, experts), torch.device("cpu")
        stored = [one for one in there.stored if _is_wanted(one.name, experts)]
        on_read, quantize = lambda *_: go_on(), self.ops.quantize
        found = load(
            self.folder, places, shapes, self.dtype, device, on_read, formats, quantize, unused=unused, stored=stored
        )
        if startup_cache_key.identity(self.folder) != self.files:
            raise ModelError(f"{self.folder}: the files are others than when the model was loaded")
        return {name.removeprefix(f"layers.{layer}.experts."): weight for name, weight in found.items()}

    def _layers(self) -> dict[int, _Layer]:
        """By their numbers."""
        assert self.own.experts is not None
        found, by_begin = defaultdict[int, _Layer](_Layer), dict[str, _Layer]()
        one = replace(self.own, experts=replace(self.own.experts, held=range(1)))
        for name, shape in parameter_shapes(one).items():
            if match := _OURS.match(name):
                found[int(match[1])].shapes[name] = shape
        for name, place in divided_places(self.family.places, self.whole, self.own).items():
            if match := _OURS.match(place.tensor):
                layer = by_begin[_begin(name)] = found[int(match[1])]
                layer.places[name] = place
        for stored in as_stored(self.folder):
            if (of := by_begin.get(_begin(stored.name))) is not None:
                of.stored.append(stored)
        return found


def _identity(folder: Path) -> list[str]:
    try:
        return startup_cache_key.identity(folder)
    except OSError as error:
        raise StartError(f"{folder}: {error}") from error


def _begin(name: str) -> str:
    """Of the names of all tensors of a layer in a checkpoint."""
    match = _NUMBERED.match(name)
    return "" if match is None else match[0]


def _is_wanted(name: str, experts: Container[int]) -> bool:
    """Whether a tensor of a checkpoint may have something of these experts."""
    match = _EXPERT.search(name)
    return match is None or int(match[1]) in experts
