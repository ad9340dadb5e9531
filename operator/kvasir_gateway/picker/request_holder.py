"""Waits for the outcome of held requests: the loop and the futures around `Picker.release`, called by the ext-proc
server. Envoy keeps the requests' bodies meanwhile, so that one that is forwarded passes no other process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kvasir_gateway.hold_queue import HeldRequest
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import ImmediateResponse

RELEASE_PERIOD_S = 0.02
"""Between two looks for requests that need not wait any more, while there are some."""

Outcome = Destination | ImmediateResponse


class RequestHolder:
    """The waits of held requests. They end with the picker's word, or with their client."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self._outcomes: dict[str, asyncio.Future[Outcome]] = {}
        self._begun = asyncio.Event()

    @contextmanager
    def waiting(self, held: HeldRequest) -> Iterator[asyncio.Future[Outcome]]:
        """The outcome of a request that has just been held. Leaving before it is there gives the place up."""
        future = self._outcomes[held.id] = asyncio.get_running_loop().create_future()
        self._begun.set()
        try:
            yield future
        finally:
            del self._outcomes[held.id]
            self._picker.stop_waiting(held)

    async def run(self) -> None:
        """Release requests until cancelled."""
        while True:
            if not self._outcomes:
                self._begun.clear()
                await self._begun.wait()
            for held_id, outcome in self._picker.release():
                future = self._outcomes.get(held_id)
                if future is not None and not future.done():
                    future.set_result(outcome)
            await asyncio.sleep(RELEASE_PERIOD_S)
