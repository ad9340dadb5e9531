"""Does the model fit where the service may get to? Forecasts from what an inspection read, class by class.

Called wherever a class is chosen, by the faults and by the status.
"""

from collections.abc import Mapping

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.inspection import ModelFacts, Prediction, decode, predicted, roofline
from kvasir_api.quantity import parse
from kvasir_api.roofline import Card, Roofline
from kvasir_api.service import InferenceServiceSpec
from kvasir_api.status import MOST
from kvasir_operator.observed.service import Observed


def on_accelerator(spec: InferenceServiceSpec) -> bool:
    """Whether a replica computes on devices, by whichever way they are asked for."""
    return spec.resources.accelerator.count > 0 or bool(spec.resources.resource_claims)


def inspected(spec: InferenceServiceSpec) -> bool:
    """Whether the spec wants the model to be looked at before replicas start."""
    wish = spec.model.inspect
    return wish == "Always" or (wish == "Auto" and on_accelerator(spec))


def facts(seen: Observed) -> ModelFacts | None:
    """What was read of the model that the spec names; None when nothing was, or when the spec wants no forecast."""
    found = seen.model
    if found is None or not found.facts or found.uri != seen.spec.model.uri or not inspected(seen.spec):
        return None
    try:
        return decode(found.facts)
    except ValueError:
        return None


def on_class(seen: Observed, spec: AcceleratorClassSpec) -> Prediction | None:
    """What one replica would hold on a device of that class; None without facts."""
    return _on_class(seen, spec, spec.compute.card())


def speed_on(seen: Observed, spec: AcceleratorClassSpec) -> Roofline | None:
    """How fast a device of that class could decode; None without facts, or where the class does not say what it can."""
    known, card = facts(seen), spec.compute.card()
    return None if known is None or card is None else roofline(known, seen.spec.runtime, card)


def on_processor(seen: Observed) -> Prediction | None:
    """What one replica would hold in the memory that it asks for; None without facts."""
    known = facts(seen)
    if known is None:
        return None
    return predicted(known, seen.spec.runtime, device="cpu", memory_bytes=_bytes(seen.spec.resources.memory))


def too_small(seen: Observed) -> Mapping[str, str]:
    """Classes that the model does not fit, with the numbers."""
    if facts(seen) is None:
        return {}
    found = {name: _on_class(seen, spec, None) for name, spec in seen.classes.items()}
    return {name: fit.message for name, fit in found.items() if fit is not None and fit.verdict == "TooSmall"}


def unknown(seen: Observed) -> Prediction | None:
    """Why there is no forecast, where one was wanted and an inspection has had its say."""
    found = seen.model
    if found is None or not inspected(seen.spec) or facts(seen) is not None or found.uri != seen.spec.model.uri:
        return None
    return Prediction(verdict="Unknown", message=found.message or "what was read of the model cannot be understood")


def _on_class(seen: Observed, spec: AcceleratorClassSpec, card: Card | None) -> Prediction | None:
    """card: what tells of speed, None where nobody asks: a class is chosen many times in one reconcile."""
    known = facts(seen)
    if known is None:
        return None
    return predicted(known, seen.spec.runtime, device="cuda", memory_bytes=_bytes(spec.memory), card=card)


def _bytes(quantity: str) -> int:
    return min(int(parse(quantity)), MOST)
