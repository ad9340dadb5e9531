"""The /state document: old and new readers and writers live side by side."""

import json

import msgspec
import pytest

from kvasir_api import state
from kvasir_api.state import GatewayState, KvState, RuntimeState, ServiceDemand


def test_round_trip() -> None:
    document = RuntimeState(
        model="m",
        phase="ready",
        kv=KvState(capacity_tokens=64, pinned_tokens=16, cached_tokens=16, free_tokens=32),
        prefix_digest=("ab",),
    )
    assert state.decode(state.encode(document)) == document
    gateway = GatewayState(services=(ServiceDemand(namespace="n", name="s", inflight=3),))
    assert state.decode_gateway(state.encode(gateway)) == gateway


def test_unknown_field_is_ignored_and_missing_one_defaults() -> None:
    assert state.decode(b'{"phase":"ready","from_the_future":{"a":1}}').phase == "ready"


@pytest.mark.parametrize("document", [b"", b"[]", b'{"phase":"dancing"}', b'{"running":"3"}'])
def test_bad_document_is_no_reading(document: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        state.decode(document)


@pytest.mark.parametrize(
    "field", ['"running":%s', '"waiting_uncached_tokens":-%s', '"kv":{"pinned_tokens":%s}', '"totals":{"arrivals":%s}']
)
def test_a_count_that_no_float_holds_is_no_reading(field: str) -> None:
    """The picker and the autoscaler divide by rates."""
    assert state.decode(b"{" + (field % 9).encode() + b"}")
    for digits in ("9" * 400, str(1 << 64)):
        with pytest.raises(msgspec.ValidationError, match="out of range"):
            state.decode(b"{" + (field % digits).encode() + b"}")
    with pytest.raises(msgspec.ValidationError, match="inflight is out of range"):
        state.decode_gateway(b'{"services":[{"namespace":"n","name":"s","inflight":' + b"9" * 400 + b"}]}")


def test_every_field_is_written() -> None:
    assert set(json.loads(state.encode(RuntimeState()))) == set(RuntimeState.__struct_fields__)
