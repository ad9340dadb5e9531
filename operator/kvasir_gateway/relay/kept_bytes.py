"""What the relay's process keeps of all requests together: their bodies, and what is needed to go on with a stream."""

import contextlib
from collections.abc import Iterator
from typing import Final

from aiohttp import web

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError

RETRY_AFTER_S: Final = 2.0


class NoRoomError(Exception):
    """A body is not kept. error: for its client."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class KeptBytes:
    """max_bytes: of all together, in the relay and on the way to external backends."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._num_bytes = max_bytes, 0

    @contextlib.contextmanager
    def share(self) -> Iterator["KeptShare"]:
        """What one request keeps until the context ends."""
        share = KeptShare(self)
        try:
            yield share
        finally:
            self._num_bytes -= share.num_bytes

    def take(self, num_bytes: int) -> bool:
        """Whether there is room for so many more, which are taken then."""
        if self._num_bytes + num_bytes > self.max_bytes:
            return False
        self._num_bytes += num_bytes
        return True


class KeptShare:
    """What one request keeps."""

    def __init__(self, kept: KeptBytes) -> None:
        self._kept, self.num_bytes = kept, 0

    def can_have(self, num_bytes: int) -> bool:
        """Whether the request may keep so many bytes in all, which count then until its end."""
        more = num_bytes - self.num_bytes
        if more > 0:
            if not self._kept.take(more):
                return False
            self.num_bytes = num_bytes
        return True

    async def body_of(self, request: web.Request) -> bytes:
        """The whole body. Raises NoRoomError, before it is read where its length is known."""
        found = bytearray()
        self._take(request.content_length or 0)
        async for chunk in request.content.iter_any():
            found += chunk
            self._take(len(found))
        return bytes(found)

    def _take(self, num_bytes: int) -> None:
        if num_bytes > self._kept.max_bytes:
            raise NoRoomError(openai_errors.body_too_large(self._kept.max_bytes))
        if not self.can_have(num_bytes):
            message = "As many requests wait, or may be resumed, as there is memory for. Try again later."
            raise NoRoomError(openai_errors.overloaded(message, retry_after_s=RETRY_AFTER_S))
