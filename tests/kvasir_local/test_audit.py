"""Lines of an audit log."""

import json

from kvasir_local import audit

LINE = json.dumps(
    {
        "verb": "patch",
        "user": {"username": "u"},
        "objectRef": {"resource": "pods", "subresource": "status", "namespace": "ns", "name": "p"},
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
    }
)
WRITE = audit.Write(
    user="u",
    verb="patch",
    resource="pods",
    subresource="status",
    namespace="ns",
    name="p",
    code=200,
    at="2026-01-01T00:00:00.000000Z",
)


def test_a_line_becomes_a_write():
    assert list(audit.writes([LINE])) == [WRITE]


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
    assert [write.resource for write in audit.writes([line])] == [""]
