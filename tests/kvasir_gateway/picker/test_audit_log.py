"""The audit log before readers that are slow, and before none."""

import io
import json
import threading

from fakes.gateway import until
from kvasir_gateway.picker.audit_log import AuditLog


class SlowStream(io.RawIOBase):
    """Takes a line when it may; broken, none."""

    def __init__(self):
        self.goes, self.is_broken, self.lines = threading.Event(), False, []
        self.num_tried = 0

    def write(self, line):
        self.num_tried += 1
        self.goes.wait(60)
        if self.is_broken:
            raise BrokenPipeError
        self.lines.append(bytes(line))
        return len(line)


async def test_a_reader_that_stalls_stops_nothing_and_what_was_dropped_is_told():
    stream = SlowStream()
    log = AuditLog(stream, most_lines=2)
    log.write(b"0")
    await until(lambda: stream.num_tried == 1, "the first line is on its way")
    for number in range(1, 8):
        log.write(b"%d" % number)
    stream.goes.set()
    await until(lambda: len(stream.lines) == 4, "what waited")
    assert [stream.lines[0], *stream.lines[2:]] == [b"0", b"1", b"2"]
    assert json.loads(stream.lines[1]) == {"audit": "dropped", "lines": 5}
    log.write(b"last")
    log.close()
    assert stream.lines[-1] == b"last"


async def test_lines_that_wait_take_no_more_memory_than_they_may():
    stream = SlowStream()
    log = AuditLog(stream, most_bytes=100)
    log.write(b"0" * 40)
    await until(lambda: stream.num_tried == 1, "the first line is on its way")
    for _ in range(3):
        log.write(b"1" * 30)
    stream.goes.set()
    await until(lambda: len(stream.lines) == 4, "what waited")
    assert [len(line) for line in (stream.lines[0], *stream.lines[2:])] == [40, 30, 30]
    assert json.loads(stream.lines[1]) == {"audit": "dropped", "lines": 1}
    log.write(b"2" * 90)
    await until(lambda: len(stream.lines) == 5, "there is room again")


async def test_a_reader_that_is_gone_ends_nothing():
    stream = SlowStream()
    stream.is_broken = True
    stream.goes.set()
    log = AuditLog(stream)
    log.write(b"lost")
    await until(lambda: stream.num_tried == 1, "it was tried")
    stream.is_broken = False
    log.write(b"kept")
    await until(lambda: stream.lines[-1:] == [b"kept"], "the next one is written")
