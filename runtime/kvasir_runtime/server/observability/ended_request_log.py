"""The requests of gateways that ended here last, which gateways read: what each of them took."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from kvasir_api import names
from kvasir_api.ended_requests import MOST_ID_CHARACTERS, EndedRequest, EndedRequests
from kvasir_runtime.server.observability.tracing import RequestTrace

MOST_KEPT: Final = 4096
"""Gateways read twice a second: more than eight thousand requests a second would have to end."""
_ID: Final = names.HEADER_INFLIGHT_ID.encode()


class EndedRequestLog:
    """instance: of this process."""

    def __init__(self, instance: str) -> None:
        self._instance, self._last = instance, 0
        self._kept: deque[EndedRequest] = deque(maxlen=MOST_KEPT)

    def add(self, headers: Iterable[tuple[bytes, bytes]], trace: RequestTrace) -> None:
        """A request has ended. One without the header of a gateway is not kept."""
        found = next((value for name, value in headers if name == _ID), b"")
        if not 0 < len(found) <= MOST_ID_CHARACTERS:
            return
        self._last += 1
        self._kept.append(
            EndedRequest(
                id=found.decode("latin-1"),
                prompt_tokens=trace.prompt_tokens,
                cached_tokens=trace.cached_tokens,
                completion_tokens=trace.completion_tokens,
                first_token_s=max(-1.0, trace.first_token_s),
            )
        )

    def after(self, number: int, instance: str) -> EndedRequests:
        """Those behind a number of a process; all that are kept where it is not this one."""
        new = self._last - number if instance == self._instance and 0 <= number <= self._last else len(self._kept)
        kept = list(self._kept)
        return EndedRequests(instance=self._instance, last=self._last, requests=tuple(kept[max(0, len(kept) - new) :]))
