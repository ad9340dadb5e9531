"""How a new revision replaces the old one: the part `spec.rollout` of an InferenceService. Used by `service` alone to
make the resource, and by the operator to read it.
"""

from typing import Literal

from kvasir_api.crd_types import CrdObject, validation_rules
from kvasir_api.option_fields import option


class CanaryStep(CrdObject):
    """How many replicas of the new revision there may be for a while."""

    replica_percent: int = option(
        ...,
        "Share of the replicas that the new revision gets, rounded up; the gateway spreads requests over all of them.",
        unit="percent",
        ge=1,
        le=99,
    )
    pause_seconds: int = option(0, "How long they serve before the next step.", unit="seconds", ge=0, le=86_400)


class Analysis(CrdObject):
    """When a new revision is worse than the old one, by what both say of the requests that they served."""

    min_requests: int = option(
        50, "Requests that the new revision answers before it is judged; no step ends sooner.", ge=1, le=1_000_000
    )
    max_error_percent: int = option(
        5,
        "More requests than this that end in an error, and more than of the old one, are too many.",
        unit="percent",
        ge=0,
        le=100,
    )
    max_ttft_regression_percent: int = option(
        0,
        "The mean time to the first token may be so much longer than the old one's; 0 allows any.",
        unit="percent",
        ge=0,
        le=1000,
    )


class Rollout(CrdObject):
    """How a new revision replaces the old one."""

    model_config = validation_rules(
        (
            "self.?steps.orValue([]).size() == 0 || self.?strategy.orValue('Surge') != 'BlueGreen'",
            "rollout.steps are for the strategies Surge and InPlace: BlueGreen goes in one step",
            ".steps",
        ),
        (
            "self.?promote.orValue('') == '' || self.promote != self.?abort.orValue('')",
            "rollout.promote and rollout.abort name the same revision",
            ".abort",
        ),
        (
            "self.?strategy.orValue('Surge') != 'InPlace' || self.?maxUnavailable.orValue(1) > 0",
            "rollout.maxUnavailable must be above 0 with the strategy InPlace, or no replica could ever be replaced",
            ".maxUnavailable",
        ),
    )

    strategy: Literal["Surge", "InPlace", "BlueGreen"] = option(
        "Surge",
        "Surge starts new replicas before old ones leave; InPlace takes old ones away first, where accelerators are scarce; BlueGreen starts all new ones first; the old ones leave together.",
    )
    max_surge: int = option(
        1, "Surge: replicas above the wanted number while a revision is replaced.", unit="replicas", ge=1, le=100
    )
    max_unavailable: int = option(
        1,
        "Replicas that may be missing while a revision is replaced: with InPlace, and with Surge while no accelerator can be spared, where 0 waits for one.",
        unit="replicas",
        ge=0,
        le=100,
    )
    in_place_after_seconds: int = option(
        240,
        "Surge: when a new replica found no accelerator for so long, old ones leave first, at most maxUnavailable at a time, never the last one, until there is room; 0 never does.",
        unit="seconds",
        ge=0,
        le=86_400,
    )
    steps: list[CanaryStep] = option(
        [], "Shares of the new revision on its way to all replicas; none goes straight there.", max_length=10
    )
    analysis: Analysis | None = option(
        None, "Holds the rollout while the new revision is worse than the old one; absent judges nothing."
    )
    auto_rollback: bool = option(
        False,
        "Goes back to the last good revision when the new one is refused, makes no progress or fails the analysis.",
    )
    reclass: Literal["OnChange", "Always"] = option(
        "OnChange",
        "When replicas move to another AcceleratorClass: OnChange, when the spec changes their pods, or their class is gone, unsuitable or without a node; Always, also when a cheaper or earlier one appears.",
    )
    paused: bool = option(False, "Leaves the rollout where it is.")
    promote: str = option(
        "", "Name of a revision that goes to all replicas at once, whatever steps and analysis say.", max_length=63
    )
    abort: str = option("", "Name of a revision that is given up for the last good one.", max_length=63)
    progress_deadline_seconds: int = option(
        1800, "A rollout without progress for this long is Stalled.", unit="seconds", ge=10, le=86_400
    )
