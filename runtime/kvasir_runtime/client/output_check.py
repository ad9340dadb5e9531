"""One short request of our own to the engine, to learn whether its output is finite. Called by the server's process."""

import secrets
from collections.abc import Sequence
from typing import Final

from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.wire import EngineFacts, EngineRequest, PoolingConfig, SamplingConfig

LIMIT_S: Final = 30.0
"""A busy engine has this one in its queue with all others."""


async def check(client: EngineClient, facts: EngineFacts, prompt: Sequence[int], limit_s: float = LIMIT_S) -> None:
    """Have one token computed, or a vector by a model that gives none; the client counts how it ends.

    The salt keeps it apart from what others have cached.
    """
    request = EngineRequest(
        request_id=f"check-{secrets.token_hex(8)}",
        prompt=tuple(prompt),
        sampling=SamplingConfig(temperature=0.0, max_tokens=1, ignore_eos=True),
        pooling=None if facts.head == "vocabulary" else PoolingConfig(kind="last"),
        salt=secrets.token_bytes(8),
    )
    queue = EventQueue()
    try:
        client.submit([request], queue)
    except EngineDeadError:
        return  # the process ends for it
    await queue.take(limit_s)
    client.abort(request.request_id)
