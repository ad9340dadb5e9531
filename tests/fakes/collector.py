"""An OTLP collector over HTTP in this process: it keeps the spans that are sent to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """url: what exporters are told. spans: in the order of their arrival, each with its resource's attributes."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: set[str] = set()
        self.spans: list[tuple[Any, dict[str, Any]]] = []

    def named(self, name: str) -> list[Any]:
        """Spans of this name."""
        return [span for span, _ in list(self.spans) if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        """One request of an exporter."""
        self.paths.add(path)
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = values(part.resource.attributes)
            self.spans += [(span, resource) for scope in part.scope_spans for span in scope.spans]


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    found: dict[str, Any] = {}
    for item in attributes:
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        found[item.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@contextmanager
def collector() -> Iterator[Collector]:
    """A running one, on a free port of the loopback."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its parent's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
