"""Reads the audit log: who wrote what. Tests use it as their oracle. Pure but for reading the file it is given."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write request as the API server answered it. at: RFC 3339 time of its arrival; code: HTTP status."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    at: str


def writes(lines: Iterable[str]) -> Iterator[Write]:
    """The completed writes among lines of an audit log; a line that is cut off, as the last may be, is left out."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        target = event.get("objectRef", {})
        yield Write(
            user=event["user"]["username"],
            verb=event["verb"],
            resource=target.get("resource", ""),
            subresource=target.get("subresource", ""),
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=event.get("responseStatus", {}).get("code", 0),
            at=event["requestReceivedTimestamp"],
        )


def read(log: Path, *, since: int = 0) -> tuple[list[Write], int]:
    """The writes after the byte `since`, and the byte where the next reading begins."""
    with log.open("rb") as file:
        file.seek(since)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    return list(writes(whole.decode().splitlines())), since + len(whole)
