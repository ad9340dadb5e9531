"""What each client gets with the next message: its outputs, and once the whole set of prefixes. Owned by the loop.

A client whose message cannot be delivered is gone. Reads no clock and knows no requests.
"""

from collections import defaultdict
from collections.abc import Callable

import msgspec

from kvasir_runtime.engine.interfaces import Clients
from kvasir_runtime.engine_reports import PrefixChanges
from kvasir_runtime.wire import EngineOutput, Ready, StepOutputs


class ClientOutboxes:
    """gone: called for each client that is."""

    def __init__(self, clients: Clients, gone: Callable[[bytes], None]) -> None:
        self._clients, self._gone = clients, gone
        self._present: dict[bytes, bool] = {}
        """Clients, and whether the set of prefixes was sent to them."""
        self._outputs: defaultdict[bytes, list[EngineOutput]] = defaultdict(list)

    def __bool__(self) -> bool:
        """Whether there are outputs to be sent."""
        return bool(self._outputs)

    @property
    def present(self) -> list[bytes]:
        """Clients that introduced themselves and are not gone."""
        return list(self._present)

    def greet(self, client: bytes, ready: Ready) -> None:
        """A client introduced itself: it gets this, and from now on every message."""
        self._present[client] = False
        if not self._clients.send(client, ready):
            self.drop(client)

    def add(self, client: bytes, *outputs: EngineOutput) -> None:
        """For its next message."""
        self._outputs[client] += outputs

    def send(self, message: StepOutputs, whole: Callable[[], PrefixChanges]) -> None:
        """The message to every client, with its own outputs. whole: all prefixes, for those that have none yet."""
        outputs, self._outputs = self._outputs, defaultdict(list)
        for client in {**self._present, **dict.fromkeys(outputs)}:
            prefixes = message.prefixes
            if self._present.get(client) is False:
                self._present[client], prefixes = True, whole()
            own = msgspec.structs.replace(message, outputs=tuple(outputs.get(client, ())), prefixes=prefixes)
            if not self._clients.send(client, own):
                self.drop(client)

    def drop(self, client: bytes) -> None:
        """A client is gone without a message."""
        self._present.pop(client, None)
        self._outputs.pop(client, None)
        self._gone(client)
