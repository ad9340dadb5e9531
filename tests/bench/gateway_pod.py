"""A replica without an engine for the gateway's benchmarks: `python -m bench.gateway_pod NAME` prints its two ports.

A stream has `max_tokens` events, one every `pause_s` seconds of the body, the first at once. With the pieces of a
continuation token, which counts its events, it can be continued, and is handed over when the replica drains; what ends
or begins a drain is answered with how many were since. It keeps nothing of what it answered, so that it runs for as
long as a benchmark does.
"""

import asyncio
import json
import sys
from typing import Any

from aiohttp import web
from msgspec import structs

from kvasir_api import ended_requests, names, openai_errors, state
from kvasir_kube import process
from kvasir_runtime.server.observability.ended_request_log import EndedRequestLog
from kvasir_runtime.server.observability.tracing import RequestTrace

EVENT = b'data: {"choices":[{"index":0,"text":" word","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
WHOLE = b'{"choices":[{"index":0,"text":" word","finish_reason":"length"}]}'
PIECE = b": %b %%b\n\n" % names.COMMENT_CONTINUATION.encode()
HANDED_OVER = f": {names.COMMENT_HANDED_OVER} {openai_errors.DRAINING}\n\n".encode()
PROMPT_TOKENS = 2000


class BenchmarkPod:
    """One replica; its name is in the header x-pod of each answer."""

    def __init__(self, name: str) -> None:
        self._headers, self._ended = {"x-pod": name}, EndedRequestLog(name)
        rates = state.MeasuredRates(prefill_tokens_per_s=5000.0, stall_fraction=0.5, decode_slope_s=0.001)
        self._state = state.RuntimeState(phase="ready", instance=name, rates=rates)
        self._open = self._handed_over = 0

    async def run(self) -> None:
        """Serve until killed."""
        clients, control = web.Application(client_max_size=1 << 24), web.Application()
        clients.router.add_post("/v1/completions", self._answer)
        control.router.add_get(names.PATH_STATE, self._get_state)
        control.router.add_get(names.PATH_ENDED_REQUESTS, self._get_ended)
        control.router.add_route("*", names.PATH_DRAIN, self._drain)
        print(await _port(clients), await _port(control), flush=True)
        await asyncio.Event().wait()

    async def _get_state(self, _request: web.Request) -> web.Response:
        return web.Response(body=state.encode(structs.replace(self._state, running=self._open)))

    async def _drain(self, request: web.Request) -> web.Response:
        phase = "draining" if request.method == "POST" else "ready"
        self._state = structs.replace(self._state, phase=phase)
        handed_over, self._handed_over = self._handed_over, 0
        return web.json_response(handed_over, status=202)

    async def _get_ended(self, request: web.Request) -> web.Response:
        found = self._ended.after(int(request.query.get("after", 0)), request.query.get("instance", ""))
        return web.Response(body=ended_requests.encode(found))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if self._state.phase == "draining":
            return web.json_response({"error": {"code": openai_errors.DRAINING}}, status=503)
        self._open += 1
        try:
            if not body.get("stream"):
                return web.Response(body=WHOLE, content_type="application/json", headers=self._headers)
            return await self._stream(request, body)
        finally:
            self._open -= 1
            self._ended.add(request.raw_headers, RequestTrace(prompt_tokens=PROMPT_TOKENS, completion_tokens=1))

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        resumes = request.headers.get(names.HEADER_CONTINUATION) == "pieces"
        headers = {"content-type": "text/event-stream", **self._headers}
        response = web.StreamResponse(headers=headers | ({names.HEADER_CONTINUATION: "pieces"} if resumes else {}))
        await response.prepare(request)
        begun = body.get("continuation", "").count(".")
        await response.write(PIECE % b".".join([b"0"] * (begun + 1)) if resumes else b"")
        for number in range(begun, body["max_tokens"]):
            if number:
                await asyncio.sleep(body["pause_s"])
            if resumes and self._state.phase == "draining":
                self._handed_over += 1
                await response.write_eof(HANDED_OVER)
                return response
            await response.write(EVENT + (PIECE % b"0" if resumes else b""))
        await response.write_eof(LAST)
        return response


async def _port(application: web.Application) -> int:
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    taken: int = runner.addresses[0][1]
    return taken


if __name__ == "__main__":
    process.run(BenchmarkPod(sys.argv[1]).run())
