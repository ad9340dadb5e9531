"""An external server of OpenAI's API over TLS on loopback, with faults that a test sets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from fakes import tls_files
from kvasir_kube import http_sites
from kvasir_kube.certificates import KeyPair

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
WORDS = ("Hel", "lo", "!")
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 5}}
HOSTILE_HEADERS = {
    "set-cookie": "a=b",
    "x-kvasir-service": "other/service",
    "x-kvasir-backend-failed": "no",
    "location": "https://elsewhere.example",
    "x-ratelimit-limit-requests": "1",
}


class OpenAiServer:
    """answer: what it does instead of answering, None for that. seen: heads and bodies of requests so far."""

    def __init__(self, name: str, by: KeyPair, directory: Path) -> None:
        self.name, self.port = name, 0
        self.answer: Answer | None = None
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.hold: asyncio.Event | None = None
        self._by, self._directory = by, directory

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["OpenAiServer"]:
        """Listen on loopback."""
        tls_files.issued(self._by, self._directory)
        application = web.Application()
        application.router.add_post("/{path:.*}", self._respond)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await http_sites.TcpSite(runner, "127.0.0.1", 0, ssl_context=tls_files.server_side(self._directory)).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    def file(self, **fields: Any) -> dict[str, Any]:
        """Its file for the gateways, which may reach it."""
        known = {
            "url": f"https://127.0.0.1:{self.port}/openai/v1",
            "key": f"key-of-{self.name}",
            "namespaces": ["default"],
        }
        return {**known, "ca": self._by.certificate.decode(), "networks": ["127.0.0.0/8"], "anonymous": True, **fields}

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append((request.path, {name.lower(): value for name, value in request.headers.items()}, body))
        if self.answer is not None:
            return await self.answer(request)
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(WORDS)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response(_document("chat.completion", body, [choice], USAGE), headers=HOSTILE_HEADERS)
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8", **HOSTILE_HEADERS})
        await response.prepare(request)
        for word in WORDS:
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            await response.write(event(_document("chat.completion.chunk", body, [choice], None)))
            if self.hold is not None:
                await self.hold.wait()
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(event(_document("chat.completion.chunk", body, [], USAGE)))
        await response.write(b"data: [DONE]\n\n")
        return response


def event(document: dict[str, Any]) -> bytes:
    """Of a stream."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def with_status(status: int, **headers: str) -> Answer:
    """An error with a text in which a careless server quotes the key."""

    async def answer(request: web.Request) -> web.StreamResponse:
        said = f"no: {request.headers.get('authorization')}"
        return web.json_response({"error": {"message": said, "code": "theirs"}}, status=status, headers=headers)

    return answer


def _document(kind: str, body: dict[str, Any], choices: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
    known = {"id": "x", "object": kind, "created": 1, "model": body["model"], "choices": choices}
    return {**known, "usage": usage, "system_fingerprint": "f"}
