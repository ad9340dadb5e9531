"""Checks of a spec that the API server accepted. The first violation counts. Called by `desired/resolve.py`."""

from collections.abc import Callable
from typing import Final

from kvasir_operator.desired.fit import on_accelerator
from kvasir_operator.desired.remote_model import is_unresolved
from kvasir_operator.desired.source import allowed, model_source
from kvasir_operator.desired.template import exchange_obstacle
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import Placement, Violation

TOO_SMALL: Final = "TooSmall"
MODEL_UNAVAILABLE: Final = "ModelUnavailable"
CURABLE: Final = (TOO_SMALL, MODEL_UNAVAILABLE)
"""Reasons of violations that another inspection of the model may cure."""


def violation(seen: Observed, placed: Placement, settings: OperatorSettings) -> Violation | None:
    """The first thing that cannot be honoured, or None. What runs already goes on as it is."""
    return next((found for check in CHECKS if (found := check(seen, placed, settings)) is not None), None)


def patch_violation(placed: Placement, trouble: str) -> Violation:
    """trouble: why the class's patches must not be used; it begins with the path of the operation."""
    field, _, why = trouble.partition(" ")
    return Violation(reason="BadPatch", message=f"{field} of AcceleratorClass {placed.choice.name} {why}")


def _contract(seen: Observed, _: Placement, __: OperatorSettings) -> Violation | None:
    return Violation(reason="InvalidSpec", message=seen.invalid) if seen.invalid else None


def _time_zones(seen: Observed, _: Placement, __: OperatorSettings) -> Violation | None:
    rules = seen.spec.autoscaling
    for number, schedule in enumerate(rules.schedules if rules is not None else ()):
        if schedule.zone is None:
            message = (
                f"spec.autoscaling.schedules[{number}].timeZone: {schedule.time_zone} is not in the tz database, "
                "where zones have names like Europe/Berlin"
            )
            return Violation(reason="InvalidSpec", message=message)
    return None


def _directory(seen: Observed, _: Placement, settings: OperatorSettings) -> Violation | None:
    where = model_source(seen.spec.model.uri)
    if where.kind != "file" or allowed(where.volume, settings.model_dirs):
        return None
    dirs = ", ".join(settings.model_dirs) or "none"
    return Violation(
        reason="InvalidSpec",
        message=f"spec.model.uri: {where.volume} is not below a directory that the operator allows "
        f"(--allow-model-dir: {dirs})",
    )


def _source(seen: Observed, _: Placement, __: OperatorSettings) -> Violation | None:
    """A model whose version was looked for at its source and not found."""
    found = seen.model
    if not is_unresolved(seen) or found is None or found.uri != seen.spec.model.uri or not found.message:
        return None
    return Violation(reason=MODEL_UNAVAILABLE, message=f"spec.model.uri: {found.message}")


def _claim(seen: Observed, _: Placement, __: OperatorSettings) -> Violation | None:
    if seen.claim_found:
        return None
    cache = seen.spec.model.cache_claim
    field, claim = ("cacheClaim", cache) if cache else ("uri", model_source(seen.spec.model.uri).volume)
    return Violation(
        reason="InvalidSpec", message=f"spec.model.{field}: there is no PersistentVolumeClaim {seen.namespace}/{claim}"
    )


def _accelerator(seen: Observed, placed: Placement, _: OperatorSettings) -> Violation | None:
    asked = seen.spec.resources.accelerator
    found = placed.choice
    if found.name or not found.why:
        return None
    if found.lacking and not found.too_small:
        return Violation(reason="Unsupported", message=f"{found.lacking}: {found.why}")
    field = "classes" if asked.classes else "minMemory"
    reason = TOO_SMALL if found.too_small else "InvalidSpec"
    return Violation(reason=reason, message=f"spec.resources.accelerator.{field}: {found.why}")


def _memory(seen: Observed, placed: Placement, _: OperatorSettings) -> Violation | None:
    if on_accelerator(seen.spec):
        return None
    judged = placed.forecast
    if judged is None or judged.verdict != "TooSmall":
        return None
    return Violation(reason=TOO_SMALL, message=f"spec.resources.memory: {judged.message}")


def _roles(seen: Observed, _: Placement, settings: OperatorSettings) -> Violation | None:
    """A prompt goes from one replica to another by its blocks."""
    if seen.spec.roles.prefill is None:
        return None
    why = exchange_obstacle(seen.spec, settings)
    message = f"spec.roles.prefill: no replica can compute prompts for others, since {why}"
    return Violation(reason="InvalidSpec", message=message) if why else None


CHECKS: Final[tuple[Callable[[Observed, Placement, OperatorSettings], Violation | None], ...]] = (
    _contract,
    _time_zones,
    _roles,
    _directory,
    _claim,
    _source,
    _accelerator,
    _memory,
)
