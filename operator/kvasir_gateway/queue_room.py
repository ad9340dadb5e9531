"""Whether a pod's queue takes one more request, by the bounds that it reports and what was sent there since. Pure.

The pod decides for itself, by the same bounds, and answers 429: a request that waits here for room keeps its place
among those of other tenants, and takes a room at whichever pod has it first.
"""

from typing import Final

import msgspec

from kvasir_api.state import RuntimeState

NO_WAIT: Final = 0.1
"""Part of the bound in seconds: a shorter wait is none. A pod that has nothing to compute predicts one step."""


class QueueRoom(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod's queue takes at most, and where the pod stood when it reported.

    places: sequences that run at once. most_requests, most_tokens, most_s: that may wait, prompt tokens of them that
    have to be computed, and seconds to the first token; 0 for no bound, and from pods that report none.
    """

    places: int = 0
    most_requests: int = 0
    most_tokens: int = 0
    most_s: float = 0.0

    @property
    def has_no_bounds(self) -> bool:
        """Whether every request is taken."""
        return self.most_requests <= 0 and self.most_tokens <= 0 and self.most_s <= 0

    def takes_any(self, requests: int) -> bool:
        """Whether a request is taken beside so many others, whatever it is: one of the places is free, and no bound in
        seconds counts. None does for a pod without a request, so that nothing waits for one that is idle."""
        return requests < self.places and (requests <= 0 or self.most_s <= 0)

    def takes(self, *, requests: int, tokens: float, wait_s: float, first_token_s: float) -> bool:
        """Whether the pod takes one more request.

        requests: that it has, running or waiting, with those that were sent since. tokens: to be computed of the
        waiting ones and of the new one. wait_s, first_token_s: predicted for the new one, until its turn and in all.
        """
        if self.takes_any(requests):
            return True
        waiting = requests - self.places
        if waiting < 0 and wait_s <= NO_WAIT * self.most_s:  # of prompts that are computed, not of those that follow
            return True
        return not (
            0 < self.most_requests <= waiting
            or (waiting > 0 and 0 < self.most_tokens < tokens)
            or 0 < self.most_s < first_token_s
        )


NO_BOUNDS = QueueRoom()


def queue_room(state: RuntimeState) -> QueueRoom:
    """As the pod computes it: while something waits, no more places than it uses are there. Predictions bound nothing
    before they are calibrated."""
    running, most = max(0, state.running), max(0, state.max_sequences)
    return QueueRoom(
        places=most if state.waiting <= 0 else min(running, most),
        most_requests=state.queue.requests,
        most_tokens=state.queue.tokens,
        most_s=state.queue.seconds if state.ttft.calibrated and state.ttft.queue_s >= 0 else 0.0,
    )
