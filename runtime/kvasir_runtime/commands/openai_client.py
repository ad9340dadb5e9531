"""A client of an OpenAI-compatible server, by the standard library alone. Used by `kvasir chat --url`."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any, Final

from kvasir_runtime.frontend.parsing.parts import Content, Reasoning

TIMEOUT_S: Final = 600.0


class ServerError(Exception):
    """The server cannot be reached, refused or failed; one line with its message."""


def base_url(url: str) -> str:
    """The URL up to /v1, given with or without it. Raises ServerError for what is no HTTP address."""
    if not url.startswith(("http://", "https://")):
        raise ServerError(f"{url} is not a URL: it must begin with http:// or https://")
    bare = url.rstrip("/")
    return bare if bare.endswith("/v1") else f"{bare}/v1"


class OpenAIClient:
    """One server. model "" takes the first that it lists. Raises ServerError, at once when it cannot be reached."""

    def __init__(self, url: str, model: str, api_key: str) -> None:
        self._base = base_url(url)
        self._headers = {"content-type": "application/json", "user-agent": "kvasir"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self.model = model or self._first_model()

    def stream(self, messages: list[dict[str, str]], params: dict[str, Any]) -> Iterator[Content | Reasoning]:
        """Pieces of the reasoning and of the answer."""
        body = {"model": self.model, "messages": messages, "stream": True, **params}
        with self._open("/chat/completions", body) as response:
            try:
                yield from pieces(response)
            except (OSError, HTTPException) as error:
                raise ServerError(f"the connection broke: {str(error) or type(error).__name__}") from error

    def _first_model(self) -> str:
        with self._open("/models") as response:
            try:
                return str(json.load(response)["data"][0]["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise ServerError(f"{self._base}/models lists no model; set --model") from error

    def _open(self, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, self._headers)  # noqa: S310 - base_url() checked it
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
        except urllib.error.HTTPError as error:
            with error:
                raise ServerError(f"{error.code}: {refusal(error.read(65536))}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise ServerError(f"{self._base} cannot be reached: {getattr(error, 'reason', error)}") from error
        return response


def pieces(lines: Iterator[bytes]) -> Iterator[Content | Reasoning]:
    """Texts and reasoning in a stream of server-sent events.

    Raises ServerError for an error in it, or when it ends too early.
    """
    for line in lines:
        field, _, value = line.strip().partition(b":")
        if field != b"data":
            continue
        if value.strip() == b"[DONE]":
            return
        try:
            document = json.loads(value)
            if "error" in document:
                raise ServerError(refusal(value))
            parts = [part for choice in document["choices"] for part in _parts(choice["delta"])]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ServerError("the server sent a chunk that is not an answer") from error
        yield from parts
    raise ServerError("the stream ended without [DONE]")


def _parts(delta: dict[str, Any]) -> list[Content | Reasoning]:
    """Of one chunk. Servers have two names for reasoning, and some send both."""
    reasoning, text = delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content")
    return [*([Reasoning(str(reasoning))] if reasoning else []), *([Content(str(text))] if text else [])]


def refusal(document: bytes) -> str:
    """The message of an error document as one line of limited length; the document itself if it is no such."""
    try:
        error = json.loads(document)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        text = document.decode(errors="replace")
    return " ".join(text.split())[:500] or "no reason given"
