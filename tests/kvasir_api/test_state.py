"""The /state document: old and new readers and writers live side by side."""

import json

import msgspec
import pytest

from kvasir_api import state
from kvasir_api.state import GatewayState, KvState, PrefixDigest, RequestTotals, RuntimeState, ServiceDemand
from kvasir_api.state_count import MAX_COUNT


def test_round_trip() -> None:
    document = RuntimeState(
        model="m",
        phase="ready",
        kv=KvState(capacity_tokens=64, pinned_tokens=16, cached_tokens=16, free_tokens=32),
        prefixes=PrefixDigest(sequence=4, entries=1, after=3, added=b"\xab" * 8),
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


@pytest.mark.parametrize("instance", ["a" * 65, "a b", "a\\n", "é"])
def test_an_instance_that_cannot_be_a_name_is_no_reading(instance: str) -> None:
    """Readers put it into their next request."""
    assert state.decode(b'{"instance":"0a-B_c:1.~"}').instance
    with pytest.raises(msgspec.ValidationError, match="instance"):
        state.decode(f'{{"instance":"{instance}"}}'.encode())


@pytest.mark.parametrize(
    "field", ['"running":%s', '"waiting_uncached_tokens":-%s', '"kv":{"pinned_tokens":%s}', '"totals":{"arrivals":%s}']
)
def test_a_count_that_no_float_holds_is_no_reading(field: str) -> None:
    """The picker and the autoscaler divide by rates."""
    assert state.decode(b"{" + (field % 9).encode() + b"}")
    for digits in ("9" * 400, str(1 << 64)):
        with pytest.raises(msgspec.ValidationError, match=r"Expected `int` [<>]= -?9223372036854775807"):
            state.decode(b"{" + (field % digits).encode() + b"}")
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int` <= .*services\[0\]\.inflight"):
        state.decode_gateway(b'{"services":[{"namespace":"n","name":"s","inflight":' + b"9" * 400 + b"}]}")


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
)
def test_every_count_declares_its_bound(kind: type[msgspec.Struct]) -> None:
    """So that msgspec checks it while it reads, and nothing walks over the document afterwards."""
    found = msgspec.inspect.type_info(kind)
    assert isinstance(found, msgspec.inspect.StructType)
    counts = {field.name: field.type for field in found.fields if isinstance(field.type, msgspec.inspect.IntType)}
    bounded = msgspec.inspect.IntType(ge=-MAX_COUNT, le=MAX_COUNT)
    assert counts == dict.fromkeys(counts, bounded)


def test_every_field_is_written() -> None:
    assert set(json.loads(state.encode(RuntimeState()))) == set(RuntimeState.__struct_fields__)


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [
        (("a", 5), ("a", 6), False),
        (("a", 5), ("b", 6), True),
        (("", 5), ("b", 6), False),
        (("", 5), ("", 4), True),
        (("a", 5), ("a", 5), False),
    ],
)
def test_a_restart_is_another_instance_or_fewer_requests(before, after, restarted) -> None:
    old, new = (RuntimeState(instance=name, totals=RequestTotals(arrivals=count)) for name, count in (before, after))
    assert state.restarted(old, new) is restarted


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"sequence_number": 9, "heartbeat_age_s": 0.4}, True),
        ({"running": 1}, False),
        ({"totals": RequestTotals(arrivals=1)}, False),
        ({"stalled_s": 2.0}, False),
        ({"instance": "another"}, False),
    ],
)
def test_a_document_says_something_new_unless_it_is_only_numbered(fields, same) -> None:
    before = RuntimeState(model="m", phase="ready", sequence_number=4, heartbeat_age_s=0.1)
    assert state.unchanged(before, msgspec.structs.replace(before, **fields)) is same
