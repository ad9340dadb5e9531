"""Clients of the engine's loop without sockets: a script of what they send, a list of what they are told."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvasir_runtime.wire import EngineOutput, FromEngine, Shutdown, StepOutputs, ToEngine

CLIENT = b"api-0"


@dataclass(slots=True)
class FakeClients:
    """script: what each call of receive() gives; once it is spent, Shutdown as soon as the engine would wait.

    patience_s: how short a wait is waited for instead, as the engine does while it compiles a grammar.
    gone: clients that cannot be reached. waited: the timeouts the engine asked for.
    """

    script: list[Sequence[ToEngine | tuple[bytes, ToEngine]]] = field(default_factory=list)
    patience_s: float = 0.0
    gone: set[bytes] = field(default_factory=set)
    sent: list[tuple[bytes, FromEngine]] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def receive(self, timeout_s: float) -> Sequence[tuple[bytes, ToEngine]]:
        """The next part of the script."""
        self.waited.append(timeout_s)
        if self.script:
            return [item if isinstance(item, tuple) else (CLIENT, item) for item in self.script.pop(0)]
        if timeout_s > self.patience_s:
            return [(CLIENT, Shutdown())]
        time.sleep(timeout_s)
        return []

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Kept, unless the client is gone."""
        if client in self.gone:
            return False
        self.sent.append((client, message))
        return True

    def steps(self, client: bytes = CLIENT) -> list[StepOutputs]:
        """What the engine said after each step."""
        return [message for to, message in self.sent if to == client and isinstance(message, StepOutputs)]

    def events(self, client: bytes = CLIENT) -> list[EngineOutput]:
        """All events, in order."""
        return [event for step in self.steps(client) for event in step.outputs]
