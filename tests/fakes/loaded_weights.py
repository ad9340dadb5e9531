"""What the loader makes of a checkpoint, for tests of formats."""

from collections.abc import Callable
from pathlib import Path

import torch

from kvasir_api.options import Quantization
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import QuantizedWeight, numbers
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.sharding import shard
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.family import Place
from kvasir_runtime.models.registry import read
from kvasir_runtime.models.sharded_places import sharded_places
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.loader import kinds, load
from kvasir_runtime.weights.quant_formats import DeviceFormats

Change = Callable[[dict[str, Place], dict[str, tuple[int, ...]]], object]
"""Of places and shapes, before anything is read."""


def worth(weight: Weight) -> torch.Tensor:
    """In float64, without a rounding of ours."""
    if not isinstance(weight, QuantizedWeight):
        return weight.double()
    scales = weight.scales.double() * (1 if weight.units is None else weight.units.double())
    return numbers(weight).double() * scales.repeat_interleave(weight.shape[1] // scales.shape[1], dim=1)


def loaded(
    folder: Path,
    quantization: Quantization,
    dtype: torch.dtype = torch.float32,
    rank: Rank | None = None,
    change: Change | None = None,
    device: DeviceFormats = quant_formats.CARDS,
) -> dict[str, Weight]:
    """The weights of a rank, or of all, on the host. device: as of `quant_formats.formats`."""
    config, family = read(folder)
    whole = family.spec(config)
    spec = shard(whole, rank or Rank())
    shapes, places = parameter_shapes(spec), sharded_places(family.places, whole, spec)
    if change is not None:
        change(places, shapes)
    chosen = quant_formats.formats(quantization, spec, shapes, places, kinds(folder), device=device)
    return load(folder, places, shapes, dtype, torch.device("cpu"), lambda read, total: None, chosen)
