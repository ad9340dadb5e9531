"""What of a spec cannot be honoured although the API server accepted it: an ordered list of checks, the first one
counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir_api import names
from kvasir_operator.desired.accelerator import choice
from kvasir_operator.desired.fit import on_accelerator, on_processor
from kvasir_operator.desired.source import allowed, model_source
from kvasir_operator.desired.template import patches
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings

TOO_SMALL: Final = "TooSmall"
"""The reason of a fault that a look at the model again may cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Why nothing new is made of this spec. reason: one of names.REASONS. message: begins with the path of the
    field."""

    reason: str
    message: str


def violation(seen: Observed, settings: OperatorSettings) -> Violation | None:
    """The first thing that cannot be honoured, or None. What runs already goes on as it is."""
    return next((found for check in CHECKS if (found := check(seen, settings)) is not None), None)


def _contract(seen: Observed, _: OperatorSettings) -> Violation | None:
    return Violation(reason="InvalidSpec", message=seen.invalid) if seen.invalid else None


def _directory(seen: Observed, settings: OperatorSettings) -> Violation | None:
    where = model_source(seen.spec.model.uri)
    if where.kind != "file" or allowed(where.volume, settings.model_dirs):
        return None
    dirs = ", ".join(settings.model_dirs) or "none"
    return Violation(
        reason="InvalidSpec",
        message=f"spec.model.uri: {where.volume} is not below a directory that the operator allows "
        f"(--allow-model-dir: {dirs})",
    )


def _claim(seen: Observed, _: OperatorSettings) -> Violation | None:
    if seen.claim_found:
        return None
    claim = model_source(seen.spec.model.uri).volume
    return Violation(
        reason="InvalidSpec", message=f"spec.model.uri: there is no PersistentVolumeClaim {seen.namespace}/{claim}"
    )


def _accelerator(seen: Observed, _: OperatorSettings) -> Violation | None:
    asked = seen.spec.resources.accelerator
    found = choice(seen)
    if found.name or not found.why:
        return None
    if found.lacking and not found.too_small:
        return Violation(reason="Unsupported", message=f"{found.lacking}: {found.why}")
    field = "classes" if asked.classes else "minMemory"
    reason = TOO_SMALL if found.too_small else "InvalidSpec"
    return Violation(reason=reason, message=f"spec.resources.accelerator.{field}: {found.why}")


def _memory(seen: Observed, _: OperatorSettings) -> Violation | None:
    if on_accelerator(seen.spec):
        return None
    judged = on_processor(seen)
    if judged is None or judged.verdict != "TooSmall":
        return None
    return Violation(reason=TOO_SMALL, message=f"spec.resources.memory: {judged.message}")


def _served_name(seen: Observed, _: OperatorSettings) -> Violation | None:
    if seen.holder is None:
        return None
    held = seen.holder
    field = "servedName" if held.served_name == seen.served_name else "aliases"
    older = f"{held.namespace}/{held.name}"
    return Violation(
        reason=names.CONDITION_NAME_CONFLICT,
        message=f"spec.model.{field}: {held.served_name} is served by the older InferenceService {older}",
    )


def _patches(seen: Observed, settings: OperatorSettings) -> Violation | None:
    said = patches(seen, settings).trouble
    if not said:
        return None
    field, _, why = said.partition(" ")
    return Violation(reason="BadPatch", message=f"{field} of AcceleratorClass {choice(seen).name} {why}")


CHECKS: Final[tuple[Callable[[Observed, OperatorSettings], Violation | None], ...]] = (
    _contract,
    _directory,
    _claim,
    _served_name,
    _accelerator,
    _memory,
    _patches,
)
