"""What the config of a model states, for forecasts: of one that was read, and of what a source has under a uri now.

Called by `plan`, also in a pod of the operator, which cannot see the model itself.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvasir_api import draft_head_shape, forecast, hf_config, inspection, layer_kinds
from kvasir_api.layer_kinds import LayerKind
from kvasir_api.model_shape import ModelShape
from kvasir_api.speculation import draft_model
from kvasir_runtime import hub
from kvasir_runtime.commands import host_resources, model_config
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import fetched_model

if TYPE_CHECKING:
    from kvasir_runtime.models.config import ModelConfig
    from kvasir_runtime.models.family import Family

_MAX_ARCHITECTURE: Final = 128
_MAX_WHY: Final = 1000
_MOST_EXPERTS: Final = 2**17
"""Of all layers, whose names are looked at one by one."""


def facts(config: dict[str, Any], hf_overrides: str = "", speculation: str = "off") -> inspection.ModelFacts:
    """The facts for the operator's own forecast. config: with the overrides in it. speculation: the option.

    Raises ValueError that names what is wrong with config.json.
    """
    shape, architecture = shape_of(config), architecture_of(config)
    return inspection.ModelFacts(
        architecture=architecture[:_MAX_ARCHITECTURE],
        supported=is_supported(architecture),
        cpu_dtype=host_resources.dtype("auto", shape.dtype, "cpu"),
        shape=shape,
        overrides=inspection.overrides_digest(hf_overrides),
        draft_model=(drafter := draft_model(speculation)),
        drafter=_drafter(drafter),
        own_drafter=own_drafter(config),
    )


def is_supported(architecture: str) -> bool:
    """Whether a family of the runtime has it."""
    from kvasir_runtime.models.registry import FAMILIES

    return any(architecture in family.architectures for family in FAMILIES)


def hub_inspection(name: hub.HubName, hf_overrides: str = "", speculation: str = "off") -> inspection.RemoteInspection:
    """What the hub has under a name now, with the facts of its config. Raises ModelUnavailableError."""
    found = hub.listing(name)

    def read() -> dict[str, Any]:
        if name.file:
            return hub.gguf_config(name, found)
        return model_config.read_file(hub.config_file(name, found.commit))

    return _inspected(found.commit, found.size, read, hf_overrides, speculation)


def remote_inspection(uri: str, hf_overrides: str = "", speculation: str = "off") -> inspection.RemoteInspection:
    """What a bucket, a registry or a server has under a uri now. Raises ModelError, ModelUnavailableError."""
    found = fetched_model.listing(uri)
    return _inspected(found.version, found.size, lambda: fetched_model.config(found), hf_overrides, speculation)


def _inspected(
    version: str, download_bytes: int, read: Callable[[], dict[str, Any]], hf_overrides: str, speculation: str
) -> inspection.RemoteInspection:
    """read: config.json; with a ValueError where it says nothing of the model."""
    known, why = None, ""
    try:
        config = hf_config.overridden(read(), hf_config.parsed_overrides(hf_overrides))
        known = facts(config, hf_overrides, speculation)
    except ValueError as error:
        why = str(error)[:_MAX_WHY]
    return inspection.RemoteInspection(commit=version, download_bytes=download_bytes, facts=known, message=why)


def _drafter(name: str) -> ModelShape | None:
    """Sizes of a draft model. None without one, and where its config cannot be read, which a replica then reports."""
    try:
        return drafter_shape(model_config.read_config(name)) if name else None
    except (ValueError, ModelError, ModelUnavailableError):
        return None


def drafter_shape(config: dict[str, Any]) -> ModelShape:
    """Of a draft model, or of a head. Raises ValueError."""
    return draft_head_shape.of_eagle3(config) or shape_of(config)


def own_drafter(config: dict[str, Any]) -> ModelShape | None:
    """Sizes of the layer that drafts in a model's own checkpoint; None where there is none that can be used."""
    from kvasir_runtime.models.registry import FAMILIES

    usable = {name: family.drafts for family in FAMILIES if family.drafts for name in family.architectures}
    names = usable.get(architecture_of(config))
    if names is None or (names.is_numbered and not config.get("num_nextn_predict_layers")):
        return None
    return draft_head_shape.of_mtp(config)


def shape_of(config: dict[str, Any]) -> ModelShape:
    """Raises ValueError; of an architecture that is not served it says that, not which of its fields is missing, and of
    a config that a start refuses why it does.
    """
    try:
        shape = forecast.shape(config)
    except ValueError as error:
        architecture = architecture_of(config)
        if is_supported(architecture) or "architectures" not in config:
            raise
        raise ValueError(f"architecture {architecture} is not supported, and {error}") from error
    served = _served(config)
    if served is None or not shape.held.stored:
        return shape
    kinds, pattern = layer_kinds.folded(_left_in_full(*served, shape))
    return replace(shape, kinds=kinds, pattern=pattern)


def _served(config: dict[str, Any]) -> "tuple[ModelConfig, Family] | None":
    """As a start reads it; None where no family has the architecture. Raises ValueError with what a start says."""
    from kvasir_runtime.models import registry

    flat = hf_config.flattened(config)
    if registry.declared(registry.named_in(flat)) is None:
        return None
    described = flat.get("quantization_config")
    if isinstance(described, dict) and described.get("quant_method") == "gguf":  # counts of `gguf.config_with_bits`
        flat = flat | {"quantization_config": None}
    try:
        return registry.judged(Path("config.json"), flat)
    except ModelError as error:
        raise ValueError(str(error)) from error


def _left_in_full(config: "ModelConfig", family: "Family", shape: ModelShape) -> Sequence[LayerKind]:
    """Of each layer, with the numbers that a checkpoint in fewer bits leaves in full.

    What is one matrix in the runtime is left in full where one of its parts is, as `weights.quant_formats` holds it.
    """
    from kvasir_runtime.models import quantization_config

    layers = shape.layer_kinds
    if config.quantization_config is None or shape.layers * shape.experts > _MOST_EXPERTS:
        return layers
    places = family.places(family.spec(config))
    is_left = quantization_config.left_in_full(config.quantization_config)
    numbers, left = Counter[str](), set[str]()
    for name, place in places.items():
        if place.tensor.startswith("layers.") and place.tensor.endswith(".weight") and not name.endswith(".bias"):
            numbers[place.tensor] += math.prod(place.shape)
            if is_left(name.removesuffix(".weight")):
                left.add(place.tensor)
    plain, routed = Counter[int](), Counter[int]()
    for tensor in left:
        plain[layer := int(tensor.split(".")[1])] += numbers[tensor]
        routed[layer] += numbers[tensor] if ".experts." in tensor else 0
    return [
        kind._replace(plain=min(kind.matrices, plain[layer]), plain_routed=min(kind.routed, routed[layer]))
        for layer, kind in enumerate(layers)
    ]


def architecture_of(config: dict[str, Any]) -> str:
    """The first that config.json names. Raises ValueError where they are no names."""
    return next(iter(hf_config.architectures(config)), "unknown")
