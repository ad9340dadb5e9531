"""A bounded load of streaming chats through the gateway, as an application with the official client would send it.

It counts; it draws nothing and knows nothing of the cluster. A stream that ends without its finish reason is broken.
"""

import asyncio
import itertools
import time
from dataclasses import dataclass
from typing import Final

from openai import APIError, APIStatusError, AsyncOpenAI

ANSWER_TOKENS: Final = 160
QUESTIONS: Final = (
    "What is Kvasir?",
    "What does the autoscaler do?",
    "What is a paged KV cache?",
    "What happens when a pod is drained?",
    "How do I talk to a model?",
    "What is continuous batching?",
    "What does the gateway do?",
)
RETRY_PAUSE_S: Final = 0.2


@dataclass(slots=True)
class LoadTotals:
    """Counts of streams so far. refused: answers 429 and 503, which a client retries; they are not broken."""

    finished: int = 0
    tokens: int = 0
    refused: int = 0
    broken: int = 0
    last_error: str = ""


class LoadGenerator:
    """Keeps `streams` chats open at once until `stop_at` (monotonic seconds), then lets the open ones end."""

    def __init__(self, *, client: AsyncOpenAI, model: str, streams: int) -> None:
        self._client = client
        self._model = model
        self._streams = streams
        self._numbers = itertools.count()
        self.counts = LoadTotals()

    async def run(self, stop_at: float) -> None:
        """Returns when every stream has ended."""
        await asyncio.gather(*(self._worker(stop_at) for _ in range(self._streams)))

    async def _worker(self, stop_at: float) -> None:
        while time.monotonic() < stop_at:
            try:
                await self._chat()
            except APIStatusError as error:
                if error.status_code in (429, 503):
                    self.counts.refused += 1
                    await asyncio.sleep(RETRY_PAUSE_S)
                else:
                    self._break(error)
            except APIError as error:
                self._break(error)

    def _break(self, error: Exception) -> None:
        self.counts.broken += 1
        self.counts.last_error = str(error)

    async def _chat(self) -> None:
        number = next(self._numbers)
        question = QUESTIONS[number % len(QUESTIONS)]
        stream = await self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": f"{question} ({number})"}],
            max_tokens=ANSWER_TOKENS,
            temperature=0.7,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        reason = None
        async for chunk in stream:
            if chunk.choices:
                reason = chunk.choices[0].finish_reason or reason
                self.counts.tokens += bool(chunk.choices[0].delta.content)
        if reason is None:
            self._break(RuntimeError("a stream ended without a finish reason"))
        else:
            self.counts.finished += 1
