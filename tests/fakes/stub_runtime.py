"""A program that stands in for a runtime pod in a real cluster: `python -m fakes.stub_runtime ADDRESS NAME`.

Its stream of /v1/slow ends when somebody asks its ops port for /go.
"""

import asyncio
import sys

from aiohttp import web

from kvasir_api import names, state


async def main(address: str, name: str) -> None:
    """Serve until killed."""
    go = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-pod": name})
        await response.prepare(request)
        await response.write(f"data: {name}\n\n".encode())
        if request.path.endswith("/slow"):
            await go.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    async def said(_request: web.Request) -> web.Response:
        return web.Response(body=state.encode(state.State(phase="ready")))

    async def let_go(_request: web.Request) -> web.Response:
        go.set()
        return web.Response()

    clients, control = web.Application(), web.Application()
    clients.router.add_post("/v1/{tail:.*}", answer)
    control.router.add_get(names.PATH_STATE, said)
    control.router.add_get("/go", let_go)
    for application, port in ((clients, names.PORT_HTTP), (control, names.PORT_OPS)):
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, address, port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
