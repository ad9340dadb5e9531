"""One tick for one service, from its readings to a decision: what the operator's loop, a replay and a simulation run.

Called by `loop/scaler.py`, `recording.py` and `simulation/kvasir_rule.py`, so that all three decide by the same code.
"""

from typing import Final

from msgspec import Struct

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.state import ServiceDemand
from kvasir_operator.scaling.capacity import UNKNOWN, ReplicaCapacity
from kvasir_operator.scaling.decide import ScalingDecision, ScalingState, decide
from kvasir_operator.scaling.policy import policy
from kvasir_operator.scaling.window import LoadWindow, ScaledReplica, extended


class TickInputs(Struct, frozen=True, kw_only=True):
    """at: seconds of a steady clock; wall: epoch seconds. pods: that serve or finish. gateways: what each holds for the
    service; missing_gateways: those that may hold something and do not answer. unplaced_s: how long the longest
    unschedulable replica has found no node. cold_starts_s: first starts of the ready pods, or the last one that is
    known. expected: the capacity of the next replica, as forecast or measured before; zeros where it is not known."""

    at: float
    wall: float = 0.0
    pods: tuple[ScaledReplica, ...] = ()
    gateways: tuple[ServiceDemand, ...] = ()
    missing_gateways: tuple[str, ...] = ()
    unplaced_s: float = 0.0
    cold_starts_s: tuple[float, ...] = ()
    expected: ReplicaCapacity = UNKNOWN


class TickResult(Struct, frozen=True, kw_only=True):
    """What is remembered for the next tick. decision: None without autoscaling."""

    window: LoadWindow
    state: ScalingState
    decision: ScalingDecision | None = None


def tick(
    spec: Autoscaling | None, window: LoadWindow, state: ScalingState, inputs: TickInputs, *, by_hand: int
) -> TickResult:
    """Extend the window and decide. by_hand: spec.replicas, which counts without autoscaling and in mode External: then
    demand and idleness are watched, and what is decided starts from there."""
    window = extended(
        window,
        inputs.pods,
        inputs.gateways,
        missing_gateways=inputs.missing_gateways,
        expected=inputs.expected,
        now=inputs.at,
    )
    if spec is None:
        return TickResult(window=window, state=ScalingState(wanted=by_hand, since=inputs.at))
    if spec.mode == "External":
        state = state._replace(wanted=by_hand, changes=())
    rules = policy(spec, inputs.cold_starts_s, wall=inputs.wall)
    decision, state = decide(rules, window, unplaced_s=inputs.unplaced_s, state=state, now=inputs.at)
    return TickResult(window=window, state=state, decision=decision)


REPORTED: Final = 3
"""Digits of a demand after the point, where decisions are written down."""


def as_json(service: str, at: float, decision: ScalingDecision) -> dict[str, object]:
    """A decision with its inputs as a JSON document, the same for the same decision."""
    return {
        "service": service,
        "at": at,
        "replicas": decision.replicas,
        "before": decision.before,
        "raw": decision.raw,
        "signal": decision.signal,
        "limitedBy": decision.limited_by,
        "levels": {name: round(level, REPORTED) for name, level in decision.demand.levels.items()},
        "message": decision.message,
        "reason": decision.reason,
        "arithmetic": decision.arithmetic,
    }
