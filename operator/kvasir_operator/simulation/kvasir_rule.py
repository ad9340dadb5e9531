"""Kvasir's autoscaler as a rule of a simulated service: the tick of the operator's loop, unchanged."""

from dataclasses import dataclass, field

from kvasir_api.autoscaling import Autoscaling
from kvasir_operator.scaling.decide import ScalingDecision, ScalingState
from kvasir_operator.scaling.tick import TickInputs, tick
from kvasir_operator.scaling.window import EMPTY, LoadWindow, ScaledReplica
from kvasir_operator.simulation.fleet import FleetView


@dataclass(slots=True)
class KvasirRule:
    """spec: as in a service. changes: the decisions that changed the count, for those who want to know why."""

    spec: Autoscaling
    name: str = "kvasir"
    period_s: float = 2.0
    window: LoadWindow = EMPTY
    state: ScalingState | None = None
    changes: list[tuple[float, ScalingDecision]] = field(default_factory=list)

    def wanted(self, view: FleetView) -> int:
        """One tick of the operator."""
        state = self.state or ScalingState(wanted=view.wanted, since=view.now)
        pods = [ScaledReplica(uid=name, name=name, reading=reading) for name, reading in view.readings]
        pods += [ScaledReplica(uid=name, name=name, reading=reading, serving=False) for name, reading in view.draining]
        inputs = TickInputs(
            at=view.now,
            wall=view.now,
            pods=tuple(pods),
            gateways=(view.gateway,),
            cold_starts_s=view.cold_starts_s,
        )
        result = tick(self.spec, self.window, state, inputs, by_hand=view.wanted)
        self.window, self.state = result.window, result.state
        if result.decision is not None and result.decision.changed:
            self.changes.append((view.now, result.decision))
        return result.state.wanted
