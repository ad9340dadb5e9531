"""Reads the API server's audit log: which account requested what. Tests use it as their oracle."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

READS: Final = frozenset({"get", "list", "watch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRequest:
    """One request as the API server answered it. at: RFC 3339 time of its arrival; code: HTTP status.

    group: of the resource, empty for the core group. namespace: empty for all. denied: by RBAC, not by admission or
    validation.
    """

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    denied: bool
    at: str


def requests(lines: Iterable[str]) -> Iterator[AuditedRequest]:
    """The requests among lines of an audit log, a watch twice, as it begins and as it ends; a line that is cut off, as
    the last may be, is left out."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        target = event.get("objectRef", {})
        yield AuditedRequest(
            user=event["user"]["username"],
            verb=event["verb"],
            group=target.get("apiGroup", ""),
            resource=target.get("resource", ""),
            subresource=target.get("subresource", ""),
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=event.get("responseStatus", {}).get("code", 0),
            denied=event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid",
            at=event["requestReceivedTimestamp"],
        )


def read(log: Path, *, since: int = 0) -> tuple[list[AuditedRequest], int]:
    """The requests after the byte `since`, and the byte where the next reading begins."""
    with log.open("rb") as file:
        file.seek(since)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    return list(requests(whole.decode().splitlines())), since + len(whole)


def writes(found: Iterable[AuditedRequest]) -> list[AuditedRequest]:
    """Those that change something."""
    return [request for request in found if request.verb not in READS]
