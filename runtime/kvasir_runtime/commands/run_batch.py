"""`kvasir run-batch`: answers a file of requests in the form of OpenAI's batches, one JSON object a line.

Starts a server of its own for MODEL, or asks one behind a URL; every line is a request to it, so a field means what
it means over HTTP. Answers are written in the order of their requests.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

import click

from kvasir_runtime.commands.openai_client import ServerError, base_url

TIMEOUT_S: Final = 3600.0
KEY_VARIABLE: Final = "KVASIR_API_KEY"
STREAMING: Final = "/api/"
"""Where an answer is a stream unless its request says otherwise."""
FIELDS: Final = ("custom_id", "method", "url", "body")


class LineError(ValueError):
    """A line is no request; str() is the reason."""


@click.command(
    "run-batch",
    short_help="Answer a file of requests.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.option("-i", "--input-file", type=click.File("r"), required=True, metavar="FILE", help="Requests, one a line.")
@click.option("-o", "--output-file", type=click.File("w"), required=True, metavar="FILE", help="Gets the answers.")
@click.option("--model", metavar="MODEL", help="What to serve, as for `kvasir serve`.")
@click.option("--url", metavar="URL", help="A server that runs already, instead of MODEL.")
@click.option(
    "--api-key",
    default="",
    help="Key to send.  [default: the variable OPENAI_API_KEY, or with --model first KVASIR_API_KEY]",
)
@click.option("--concurrency", type=click.IntRange(1, 4096), default=64, show_default=True, help="Requests at a time.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run_batch(
    input_file: IO[str],
    output_file: IO[str],
    model: str | None,
    url: str | None,
    api_key: str,
    concurrency: int,
    options: tuple[str, ...],
) -> None:
    """Answer the requests of a file, in the form of OpenAI's batches, and write the answers to another.

    OPTIONS are those of `kvasir serve`. Each line has custom_id, method POST, url (such as /v1/chat/completions) and
    body; its answer has the same custom_id. Ends with 1 where a line was not answered with 200.
    """
    if (model is None) == (url is None):
        raise click.UsageError("give either --model or --url")
    key = api_key or _usual_key(own=url is None)
    try:
        if url is not None:
            root = base_url(url).removesuffix("/v1")
            failed = asyncio.run(_answer(input_file, output_file, root, key, concurrency))
        else:
            with _server(str(model), options) as root:
                failed = asyncio.run(_answer(input_file, output_file, root, key, concurrency))
    except ServerError as error:
        raise click.ClickException(str(error)) from error
    if failed:
        click.echo(f"{failed} requests were not answered; see {output_file.name}", err=True)
        raise SystemExit(1)


def _usual_key(*, own: bool) -> str:
    """Of the environment. own: a server of our own reads the keys that it accepts from there too."""
    accepted = os.environ.get(KEY_VARIABLE, "").split(",")[0] if own else ""
    return accepted or os.environ.get("OPENAI_API_KEY", "")


@contextmanager
def _server(model: str, options: tuple[str, ...]) -> Iterator[str]:
    """The address of a server of our own, once it is ready. Raises ServerError."""
    command = [sys.executable, "-m", "kvasir_runtime", "serve", model, "--port", "0", "--ops-port", "0"]
    command += ["--max-waiting-seconds", "0"]  # a file is answered whole, however long that takes
    process = subprocess.Popen([*command, *options, "--log-format", "json"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    log = threading.Thread(target=deque, args=(process.stderr, 0))  # keeps no line of it
    try:
        address = _address(process.stderr)
        log.start()  # so that it never waits for a full pipe
        yield address
    finally:
        process.terminate()
        process.wait()
        if log.ident is not None:
            log.join()
        process.stderr.close()


def _address(log: IO[str]) -> str:
    """Where a server that starts is to be found, when it is ready. Raises ServerError with its last words."""
    last = "the server ended"
    for line in log:
        try:
            record = json.loads(line)
        except ValueError:
            last = line.strip() or last
            continue
        last = str(record.get("error", last))
        if record.get("message") == "ready":
            return str(record["http"])
    raise ServerError(last)


async def _answer(source: IO[str], sink: IO[str], root: str, key: str, concurrency: int) -> int:
    """Answer all lines, so many at a time, in order. How many were not answered with 200."""
    import aiohttp

    headers = {"authorization": f"Bearer {key}"} if key else {}
    running: deque[asyncio.Task[dict[str, Any]]] = deque()
    failed = 0

    async def written() -> int:
        document = await running.popleft()
        sink.write(json.dumps(document, ensure_ascii=False) + "\n")
        return document["error"] is not None or document["response"]["status_code"] != 200

    async with aiohttp.ClientSession(
        headers=headers, timeout=aiohttp.ClientTimeout(TIMEOUT_S), connector=aiohttp.TCPConnector(limit=concurrency)
    ) as session:
        for line in source:
            if not line.strip():
                continue
            if len(running) >= concurrency:
                failed += await written()
            running.append(asyncio.create_task(_answered(session, root, line)))
        while running:
            failed += await written()
    return failed


async def _answered(session: Any, root: str, line: str) -> dict[str, Any]:
    """A line of the output."""
    import aiohttp

    document: dict[str, Any] = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": None}
    document |= {"response": None, "error": None}
    try:
        given = _decoded(line)
        document["custom_id"] = given.get("custom_id")
        request = _request(given)
        async with session.post(root + request["url"], json=request["body"]) as response:
            document["response"] = {
                "status_code": response.status,
                "request_id": response.headers.get("x-request-id", ""),
                "body": await response.json(content_type=None),
            }
    except LineError as error:
        document["error"] = {"code": "invalid_request", "message": str(error)}
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        document["error"] = {"code": "connection_error", "message": str(error) or type(error).__name__}
    return document


def _decoded(line: str) -> dict[str, Any]:
    """The object of a line. Raises LineError."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"the line is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise LineError("the line is no JSON object")
    return found


def _request(request: dict[str, Any]) -> dict[str, Any]:
    """The request of a line, complete. Raises LineError."""
    missing = [name for name in FIELDS if name not in request]
    if missing:
        raise LineError(f"the line has no {missing[0]}")
    if request["method"] != "POST" or not str(request["url"]).startswith("/"):
        raise LineError("method must be POST and url a path, such as /v1/chat/completions")
    if not isinstance(request["body"], dict) or request["body"].get("stream"):
        raise LineError("body must be an object without stream")
    if str(request["url"]).startswith(STREAMING) and request["body"].get("stream") is None:
        return {**request, "body": {**request["body"], "stream": False}}
    return request
