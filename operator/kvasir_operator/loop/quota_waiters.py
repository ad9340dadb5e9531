"""Services of which a quota refuses an object: of each namespace one is tried again, the others wait for its success.

A quota that refuses one service of a namespace mostly refuses the others too, so trying each of them costs requests
and gains little. It need not: a namespace may have several quotas, and which of them refuses is not examined. So the
caller tries the others too, less often. Called by the reconciler; neither clock nor queue is used here.
"""

from kvasir_kube.kinds import Key


class QuotaWaiters:
    """Refused services by namespace, in the order in which they were refused; the first is tried again soon."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Key, None]] = {}

    def refused(self, service: Key) -> bool:
        """A quota refused an object of the service. Returns whether this is the one to try again soon."""
        waiting = self._waiting.setdefault(service[0], {})
        waiting.setdefault(service)
        return next(iter(waiting)) == service

    def passed(self, service: Key) -> Key | None:
        """No quota refuses anything of the service any more, or it is gone. Returns what to try now, if it waited."""
        waiting = self._waiting.get(service[0], {})
        if service not in waiting:
            return None
        del waiting[service]
        if not waiting:
            del self._waiting[service[0]]
            return None
        return next(iter(waiting))
