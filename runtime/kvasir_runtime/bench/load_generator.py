"""Sends a workload to a server and notes when each piece of text arrives. Called by `kvasir bench` on its event loop.

Each request has a connection of its own, as separate clients would; answers are streamed. Whatever a server does, each
request ends in a RequestResult, within the time limit.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import aiohttp
import msgspec

from kvasir_runtime.bench.metrics import RequestResult
from kvasir_runtime.bench.workload import WorkloadRequest

MAX_LINE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetServer:
    """A server. base_url: up to /v1. extra: fields that every body gets. timeout_s: for the whole measurement."""

    base_url: str
    model: str
    api_key: str = ""
    chat: bool = False
    extra: dict[str, Any]
    timeout_s: float


async def run(
    target: TargetServer,
    requests: Sequence[WorkloadRequest],
    concurrency: int,
    on_answer: Callable[[RequestResult], None] = lambda _: None,
) -> tuple[list[RequestResult], float]:
    """Answers in the order of requests, at most concurrency of them at a time; and the seconds it took."""
    gate = asyncio.Semaphore(concurrency)
    deadline = time.perf_counter() + target.timeout_s
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}

    async def one(request: WorkloadRequest) -> RequestResult:
        async with gate:
            try:
                async with asyncio.timeout(deadline - time.perf_counter()):
                    answered = await _ask(session, target, request)
            except TimeoutError:
                answered = RequestResult(error=f"not done within {target.timeout_s:g} s")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                answered = RequestResult(error=reason(error))
        on_answer(answered)
        return answered

    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=MAX_LINE_BYTES
    ) as session:
        started = time.perf_counter()
        answers = await asyncio.gather(*(one(request) for request in requests))
        return list(answers), time.perf_counter() - started


def reason(error: Exception) -> str:
    """Why a request failed, in words of the network's: the library's name its settings of TLS."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        why = os.strerror(cause.errno) if cause.errno else str(cause)
        return f"{error.host}:{error.port} cannot be reached: {why}"
    return str(error) or type(error).__name__


async def models(target_url: str, api_key: str) -> list[str]:
    """Names that the server lists. Raises aiohttp.ClientError, OSError or ValueError."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=30)
    session = aiohttp.ClientSession(headers=headers, timeout=timeout)
    async with session, session.get(f"{target_url}/models") as response:
        raw = await response.read()
        if response.status != 200:
            raise ValueError(f"{target_url}/models answers {response.status}")
        listed = msgspec.json.decode(raw, type=_Models)
    return [model.id for model in listed.data]


async def _ask(session: aiohttp.ClientSession, target: TargetServer, request: WorkloadRequest) -> RequestResult:
    path, body = _body(target, request)
    sent = time.perf_counter()
    times: list[float] = []
    usage = _Usage()
    async with session.post(target.base_url + path, json=body) as response:
        if response.status != 200:
            text = " ".join((await response.text())[:2000].split())
            raise ValueError(f"HTTP {response.status}: {text[:300]}")
        async for line in response.content:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            now = time.perf_counter()
            chunk = msgspec.json.decode(line[5:], type=_Chunk)
            if chunk.error is not None:
                raise ValueError(f"error in the stream: {str(chunk.error)[:300]}")
            usage = chunk.usage or usage
            if any(choice.text or (choice.delta and choice.delta.any_text) for choice in chunk.choices):
                times.append(now - sent)
    if not times:
        raise ValueError("the answer has no text")
    return RequestResult(
        ttft_s=times[0],
        duration_s=times[-1],
        gaps_s=tuple(after - before for before, after in pairwise(times)),
        prompt_tokens=usage.prompt_tokens or request.words,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens or len(times),
        wanted_tokens=request.output_tokens,
    )


def _body(target: TargetServer, request: WorkloadRequest) -> tuple[str, dict[str, Any]]:
    shared = {
        "model": target.model,
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.extra,
    }
    if target.chat:
        return "/chat/completions", {**shared, "messages": [{"role": "user", "content": request.prompt}]}
    return "/completions", {**shared, "prompt": request.prompt}


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int:
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details else 0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None

    @property
    def any_text(self) -> str | None:
        return self.content or self.reasoning_content


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
