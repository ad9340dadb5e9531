"""Stages of a reconcile for tests that need one of them."""

from typing import Any

from kvasir_operator.desired.accelerator import placement
from kvasir_operator.desired.resolve import resolve
from kvasir_operator.desired.revision import inputs, revision_id
from kvasir_operator.desired.template import named, rendered
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import Resolved

SETTINGS = OperatorSettings()


def resolved(seen: Observed, settings: OperatorSettings = SETTINGS, *, now: float = 0.0) -> Resolved:
    """The second stage, at any moment."""
    return resolve(seen, settings, now=now)


def pod_template(seen: Observed, revision: str = "rev", settings: OperatorSettings = SETTINGS) -> Any:
    """The pod template of a service, whatever its violations."""
    return named(rendered(seen, placement(seen), settings).template, revision)


def revision_of(seen: Observed) -> str:
    """The hash of what its pods depend on, without patches."""
    return revision_id(inputs(seen, placement(seen).accelerator))
