"""CrashLoopBackOff: how long a container that ended waits before it starts again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """Seconds. A run longer than reset_s forgets earlier crashes. The defaults are the kubelet's."""

    base_s: float = 10.0
    limit_s: float = 300.0
    reset_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """delay_s: the wait that the next crash earns; 0 means that it restarts at once."""

    delay_s: float = 0.0


NONE = Backoff()
"""Nothing has crashed."""


def after_run(policy: BackoffPolicy, backoff: Backoff, *, ran_s: float) -> tuple[Backoff, float]:
    """The next state, and the seconds to wait now that a run of ran_s seconds has ended.

    The first end restarts at once, then base, doubling up to the limit.
    """
    earned = 0.0 if ran_s >= policy.reset_s else backoff.delay_s
    following = policy.base_s if earned == 0 else min(earned * 2, policy.limit_s)
    return Backoff(following), earned
