"""Lines of an audit log."""

import json
from dataclasses import replace

from kvasir_local import audit

LINE = json.dumps(
    {
        "verb": "patch",
        "user": {"username": "u"},
        "objectRef": {"apiGroup": "g", "resource": "pods", "subresource": "status", "namespace": "ns", "name": "p"},
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
    }
)
WRITE = audit.AuditedRequest(
    user="u",
    verb="patch",
    group="g",
    resource="pods",
    subresource="status",
    namespace="ns",
    name="p",
    code=200,
    denied=False,
    at="2026-01-01T00:00:00.000000Z",
)


def test_a_line_becomes_a_write():
    assert list(audit.requests([LINE])) == [WRITE]


def test_reading_goes_on_where_it_ended_and_leaves_half_lines_for_later(tmp_path):
    log = tmp_path / "audit.log"
    log.write_text(f"{LINE}\n{LINE[:20]}")
    first, mark = audit.read(log)
    assert first == [WRITE]
    with log.open("a") as file:
        file.write(f"{LINE[20:]}\n")
    assert audit.read(log, since=mark) == ([WRITE], 2 * (len(LINE) + 1))


def test_a_request_without_an_object_is_kept():
    line = json.dumps({"verb": "create", "user": {"username": "u"}, "requestReceivedTimestamp": "t"})
    assert [write.resource for write in audit.requests([line])] == [""]


def test_reads_are_no_writes():
    read = replace(WRITE, verb="watch")
    assert audit.writes([WRITE, read]) == [WRITE]


def test_a_request_without_the_right_to_it_is_told_apart():
    line = json.loads(LINE) | {"annotations": {"authorization.k8s.io/decision": "forbid"}}
    assert list(audit.requests([json.dumps(line)])) == [replace(WRITE, denied=True)]
