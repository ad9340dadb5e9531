"""The fewest replicas of a service now: minReplicas, or with 0 of them none at all while no requests come.

Called by `decide.py`. Where a request has come within idleSeconds at least one replica is there or on its way: so one
that is refused or held at a gateway starts the first replica, and one that was answered keeps the last.
"""

from typing import Literal

from msgspec import Struct

from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.window import LoadWindow
from kvasir_operator.scaling.workload import Workload


class ReplicaFloor(Struct, frozen=True, kw_only=True):
    """replicas: at least. why: the limit that is named for it."""

    replicas: int
    why: Literal["floor", "activity", "reserve", "idle"]

    @property
    def idle(self) -> bool:
        """Whether all replicas leave, whatever was needed within the last minutes."""
        return self.why == "idle"


def replica_floor(
    policy: ScalingPolicy, window: LoadWindow, load: Workload, *, wanted: int, since: float, now: float
) -> ReplicaFloor:
    """wanted: replicas until now. since: when a replica last became able to take requests, or watching began; on the
    same clock as now."""
    if policy.min_replicas:
        return ReplicaFloor(replicas=policy.min_replicas, why="floor")
    requested_at = window.known.requested_at
    # At zero no replica has to have had its time: only a request counts.
    if now - (max(requested_at, since) if wanted else requested_at) < policy.idle_s:
        return ReplicaFloor(replicas=1, why="activity")
    if wanted and _starts_late(policy, load, window):
        return ReplicaFloor(replicas=1, why="reserve")
    return ReplicaFloor(replicas=0, why="idle")


def _starts_late(policy: ScalingPolicy, load: Workload, window: LoadWindow) -> bool:
    """Whether a request that starts a replica waits for longer than the objective for the first token allows."""
    rate = window.known.capacity.prefill_tokens_per_s
    return 0 < policy.ttft_s < policy.cold_start_s + (load.prompt_tokens / rate if rate else 0.0)
