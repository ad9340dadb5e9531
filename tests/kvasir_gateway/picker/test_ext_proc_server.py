"""One request at the picker, message by message, where its decision comes later."""

import asyncio

import pytest

from fakes.gateway import until
from kvasir_gateway.hold_queue import HeldRequest
from kvasir_gateway.picker.ext_proc_server import CONTINUE, WAIT, RequestStream
from kvasir_gateway.picker.request_holder import RELEASE_PERIOD_S, RequestHolder
from kvasir_gateway.picker.request_parser import ImmediateResponse
from kvasir_gateway.proto import ext_proc_pb2 as proc


class FakeStream:
    """Keeps what is sent."""

    def __init__(self):
        self.sent, self.ended, self.has_failed = [], [], False

    def send(self, message):
        self.sent.append(message)

    def end(self, message):
        self.ended.append(proc.ProcessingResponse.FromString(message))

    def fail(self):
        self.has_failed = True


class HoldingPicker:
    """Holds each request; `release` has the outcome as soon as there is one."""

    def __init__(self):
        self.outcome, self.left = None, []

    def respond_to_head(self, _method, _target, _headers):
        return None

    def pick(self, _body, inflight_id, _target, _headers):
        return HeldRequest(id=inflight_id, service="default/s")

    def release(self):
        return [] if self.outcome is None else [("", self.outcome)]

    def stop_waiting(self, held):
        self.left.append(held.id)


@pytest.fixture
async def held():
    """A request that is held: its stream, what handles it, and the picker."""
    stream, picker = FakeStream(), HoldingPicker()
    holder = RequestHolder(picker)
    handler = RequestStream(stream, picker, holder)
    handler.received(proc.ProcessingRequest(request_headers=proc.HttpHeaders()).SerializeToString())
    handler.received(proc.ProcessingRequest(request_body=proc.HttpBody(body=b"{}")).SerializeToString())
    assert stream.sent == [CONTINUE, WAIT]
    running = asyncio.create_task(holder.run())
    yield stream, handler, picker
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_held_request_is_answered_when_it_is_decided(held):
    stream, _, picker = held
    picker.outcome = ImmediateResponse(status=503, body=b"{}", headers={}, details="none")
    await until(lambda: stream.ended != [], "the answer")
    assert stream.ended[0].immediate_response.status.code == 503
    assert (stream.has_failed, picker.left) == (False, [""])


async def test_a_held_request_that_cannot_be_answered_fails_and_does_not_wait(held):
    stream, _, picker = held
    picker.outcome = "no outcome at all"
    await until(lambda: stream.has_failed, "its end")
    assert (stream.ended, picker.left) == ([], [""])


async def test_nothing_is_sent_for_a_held_request_whose_client_leaves(held):
    stream, handler, picker = held
    handler.left()
    picker.outcome = ImmediateResponse(status=503, body=b"{}", headers={}, details="none")
    await asyncio.sleep(3 * RELEASE_PERIOD_S)
    assert (stream.ended, stream.has_failed, picker.left) == ([], False, [""])
