"""A request between its message to the engine and its last output. Kept by the loop."""

from dataclasses import dataclass

import msgspec

from kvasir_runtime.wire import EngineOutput, EngineRequest


@dataclass(slots=True, eq=False)
class OpenRequest:
    """client: where its outputs go. queue_s: seconds from its message to its first plan; -1 before that."""

    client: bytes
    request: EngineRequest
    received_at: float
    queue_s: float = -1.0
    is_queue_reported: bool = False

    @property
    def answers(self) -> tuple[str, ...]:
        """Ids that its outputs go under; the first is its own."""
        beam = self.request.beam
        return (self.request.request_id,) if beam is None else beam.answers

    def planned(self, now: float) -> None:
        """A plan computes it, for the first time or after it was preempted."""
        if self.queue_s < 0:
            self.queue_s = now - self.received_at

    def reported(self, output: EngineOutput) -> EngineOutput:
        """One of its outputs as it is sent: the first with the seconds in the queue."""
        if self.is_queue_reported:
            return output
        self.is_queue_reported = True
        return msgspec.structs.replace(output, queue_s=self.queue_s)
