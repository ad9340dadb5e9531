"""Does the model fit where the replicas run? Forecasts from the facts that an inspection read, for one class at a time.

Called when a class is chosen, and by `accelerator.placement` for the forecast of the class that was chosen.
"""

from collections.abc import Mapping

from kvasir_api import model_uri
from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.inspection import ModelFacts, Prediction, decode, predicted, roofline
from kvasir_api.options import RuntimeOptions
from kvasir_api.quantity import parse
from kvasir_api.roofline import Roofline
from kvasir_api.service import InferenceServiceSpec
from kvasir_api.status import MOST
from kvasir_operator.observed.service import Observed


def on_accelerator(spec: InferenceServiceSpec) -> bool:
    """Whether a replica computes on devices, by whichever way they are asked for."""
    return spec.resources.accelerator.count > 0 or bool(spec.resources.resource_claims)


def inspected(spec: InferenceServiceSpec) -> bool:
    """Whether the spec requests an inspection of the model before replicas start."""
    wish = spec.model.inspect
    is_of_use = on_accelerator(spec) or model_uri.is_fetched(spec.model.uri) or spec.parallelism == "Auto"
    return wish == "Always" or (wish == "Auto" and is_of_use)


def facts(seen: Observed) -> ModelFacts | None:
    """What was read of the model that the spec names; None without an inspection, or when the spec excludes it."""
    found = seen.model
    if found is None or not found.facts or found.uri != seen.spec.model.uri or not inspected(seen.spec):
        return None
    try:
        return decode(found.facts)
    except ValueError:
        return None


def on_class(known: ModelFacts, runtime: RuntimeOptions, accelerator: AcceleratorClassSpec) -> Prediction:
    """What one replica would hold on its devices of that class, and how fast one could be."""
    card = accelerator.compute.card() if runtime.ranks == 1 else None
    return predicted(known, runtime, device="cuda", memory_bytes=_of_devices(runtime, accelerator), card=card)


def speed_on(known: ModelFacts, runtime: RuntimeOptions, accelerator: AcceleratorClassSpec) -> Roofline | None:
    """How fast a device of that class could decode; None where the class does not declare what it can, or several
    devices share the layers.
    """
    card = accelerator.compute.card() if runtime.ranks == 1 else None
    return None if card is None else roofline(known, runtime, card)


def on_processor(known: ModelFacts, spec: InferenceServiceSpec) -> Prediction:
    """What one replica would hold in the memory that its pods request, which each of them shares among its ranks."""
    memory_bytes = min(_bytes(spec.resources.memory) * spec.runtime.nnodes, MOST)
    return predicted(known, spec.runtime, device="cpu", memory_bytes=memory_bytes)


def too_small(
    known: ModelFacts, runtime: RuntimeOptions, classes: Mapping[str, AcceleratorClassSpec]
) -> Mapping[str, str]:
    """Classes that the model does not fit, with the numbers."""
    found = {
        name: predicted(known, runtime, device="cuda", memory_bytes=_of_devices(runtime, accelerator))
        for name, accelerator in classes.items()
    }
    return {name: fit.message for name, fit in found.items() if fit.verdict == "TooSmall"}


def unknown(seen: Observed) -> Prediction | None:
    """Why there is no forecast although the spec requests one and an inspection has ended; None otherwise."""
    found = seen.model
    if found is None or not inspected(seen.spec) or found.uri != seen.spec.model.uri:
        return None
    return Prediction(verdict="Unknown", message=found.message or "what was read of the model cannot be understood")


def _of_devices(runtime: RuntimeOptions, accelerator: AcceleratorClassSpec) -> int:
    """Memory of all devices of a replica, each of which has a rank."""
    return min(_bytes(accelerator.memory) * runtime.ranks, MOST)


def _bytes(quantity: str) -> int:
    return min(int(parse(quantity)), MOST)
