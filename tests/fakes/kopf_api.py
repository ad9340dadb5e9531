"""What kopf requests of an API server before it watches, and lists that are refused: no object and no watch."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

import msgspec

from kvasir_kube.kinds import Json, Kind
from kvasir_operator.loop.resync import WATCHED

ITS_OWN: Final = {"api/v1": ("namespaces", "events"), "apis/apiextensions.k8s.io/v1": ("customresourcedefinitions",)}
"""What kopf looks for besides what it watches."""


def _resource(plural: str, kind: str) -> Json:
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": ["list", "watch"]}


def _place(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _documents() -> dict[str, Json]:
    """By path, without its first slash."""
    found: dict[str, Json] = {
        place: {"resources": [_resource(p, p) for p in names]} for place, names in ITS_OWN.items()
    }
    for kind, _ in WATCHED:
        found.setdefault(_place(kind), {"resources": []})["resources"].append(_resource(kind.plural, kind.kind))
    groups = []
    for place in (place for place in found if place.startswith("apis/")):
        _, group, version = place.split("/")
        named = {"groupVersion": f"{group}/{version}", "version": version}
        groups.append({"name": group, "versions": [named], "preferredVersion": named})
    return found | {"apis": {"groups": groups}, "api": {"versions": ["v1"]}, "version": {"major": "1", "minor": "30"}}


@contextmanager
def refusing(status: int) -> Iterator[str]:
    """The address of one that refuses all lists with this status."""
    documents = _documents()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = documents.get(self.path.partition("?")[0].strip("/"))
            body = msgspec.json.encode(found or {"kind": "Status", "code": status, "message": "made up", "details": {}})
            self.send_response(200 if found else status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
