"""From a key and headers to a tenant, its weight and its urgency."""

import hashlib

import pytest
from starlette.requests import Request

from kvasir_api import hashes, tenants
from kvasir_api.options import ServeOptions
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.server.auth import ApiKeys
from kvasir_runtime.server.senders import Senders

HASHES = {key: hashlib.sha256(key.encode()).hexdigest()[:8] for key in ("one", "two", "three")}
TWO = f"team/{HASHES['two']}"


@pytest.fixture
def keys(tmp_path):
    (tmp_path / "team").write_text("one\n\ntwo\n")
    (tmp_path / "other").write_text("three\none\n")
    (tmp_path / "single").write_text("alone\nalone\n")
    (tmp_path / "api-key-1").write_text("clash\n")
    made = ApiKeys(["given", "more", "given"], str(tmp_path))
    made.load(may_come=False)
    return made


def sender(keys, key="", headers=(), **options):
    raw = [
        (name.encode(), value.encode()) for name, value in (headers.items() if isinstance(headers, dict) else headers)
    ]
    scope = {"type": "http", "headers": raw, "state": {"client": key} if key else {}}
    return Senders(ServeOptions(model="m", **options), keys).of(Request(scope))


@pytest.mark.parametrize(
    ("key", "tenant"),
    [
        ("given", "api-key-1"),
        ("more", "api-key-2"),
        ("one", f"other/{HASHES['one']}"),
        ("three", f"other/{HASHES['three']}"),
        ("two", TWO),
        ("alone", "single"),
        ("clash", "file/api-key-1"),
        ("", ""),
    ],
)
def test_a_tenant_is_called_by_the_place_of_its_key(keys, key, tenant):
    assert sender(keys, key).tenant == tenant


def test_each_key_has_a_salt_and_a_weight(keys):
    weights = {"tenant_weights": f"other=2.5,other/{HASHES['one']}=3,api-key-1=4"}
    of_keys = {key: sender(keys, key, **weights).weight for key in ("given", "clash", "three", "one", "two", "")}
    assert of_keys == {"given": 4.0, "clash": 1.0, "three": 2.5, "one": 3.0, "two": 1.0, "": 1.0}
    assert sender(keys, "two").salt == tenants.salt_of_key(b"two")
    assert sender(keys).salt == sender(keys, "two", shared_prefix_cache=True).salt == b""


def test_a_tenant_keeps_its_names_when_another_line_of_its_file_goes(tmp_path):
    (tmp_path / "keys").write_text("one\ntwo\n")
    keys = ApiKeys([], str(tmp_path))
    keys.load(may_come=False)
    weights = f"keys/{HASHES['one']}=9,keys/{HASHES['two']}=2"
    assert sender(keys, "two", tenant_weights=weights).weight == 2.0
    (tmp_path / "keys").write_text("two\n")
    assert [keys.reload(), keys.reload()] == [False, True]
    made = sender(keys, "two", tenant_weights=weights)
    assert (made.tenant, made.weight) == ("keys", 2.0)
    senders = Senders(ServeOptions(model="m"), keys)
    assert senders.owners(f"keys/{HASHES['two']}") == [hashes.owner_of_salt(made.salt)]


def test_the_header_of_a_trusted_proxy_comes_first(keys):
    headers = {"x-tenant": "a@b"}
    made = sender(keys, "two", headers, tenant_header="X-Tenant", tenant_weights="a@b=7")
    assert (made.tenant, made.salt, made.weight) == ("a@b", tenants.salt_of_name("a@b"), 7.0)
    assert sender(keys, "two", headers).tenant == sender(keys, "two", tenant_header="x-tenant").tenant == TWO
    with pytest.raises(Refused, match="x-tenant takes a name"):
        sender(keys, "two", {"x-tenant": "\t" * 3}, tenant_header="x-tenant")


@pytest.mark.parametrize(("header", "value"), [("x-tenant", "a"), ("x-kvasir-priority", "1"), ("x-slo-ttft-ms", "9")])
@pytest.mark.parametrize("second", ["", "1", "b"])
def test_a_header_that_occurs_twice_is_refused(keys, header, value, second):
    """A proxy that adds the tenant's name behind that of its client would make that client any tenant."""
    with pytest.raises(Refused, match=f"{header} takes one value and occurs once"):
        sender(keys, "two", [(header, value), (header, second)], tenant_header="x-tenant")
    assert sender(keys, "two", [(header, value)], tenant_header="x-tenant")


def test_priority_and_objective_are_read(keys):
    made = sender(keys, headers={"x-kvasir-priority": "-7", "x-slo-ttft-ms": "1500"})
    assert (made.priority, made.ttft_s) == (-7, 1.5)
    assert (sender(keys).priority, sender(keys).ttft_s) == (None, 0.0)


@pytest.mark.parametrize(
    ("given", "options", "counts"),
    [
        ([], {}, -100),
        (["a"], {}, -100),
        (["a", "b"], {}, 0),
        (["a", "b"], {"most_urgent_priority": -7}, -7),
        (["a"], {"tenant_header": "x-tenant"}, 0),
        ([], {"tenant_header": "x-tenant", "most_urgent_priority": -100}, -100),
    ],
)
def test_one_of_several_tenants_is_no_more_urgent_than_the_others(given, options, counts):
    made = sender(ApiKeys(given), "a", {"x-kvasir-priority": "-100"}, **options)
    assert (made.priority_of(0), made.priority_of(-100)) == (counts, counts)
    without = sender(ApiKeys(given), "a", **options)
    assert [without.priority_of(asked) for asked in (-100, 0, 9)] == [counts, 0, 9]


def test_a_key_that_is_given_twice_is_one_tenant(tmp_path):
    (tmp_path / "keys").write_text("a\n")
    for given, several in ((["a", "a"], False), (["b"], True), ([], False)):
        made = ApiKeys(given, str(tmp_path))
        made.load(may_come=False)
        assert made.several == several


def test_blocks_of_a_tenant_are_found_by_its_name_also_after_its_key_is_gone(keys, tmp_path):
    senders = Senders(ServeOptions(model="m", tenant_header="x-tenant"), keys)
    marks = {key: hashes.owner_of_salt(tenants.salt_of_key(key.encode())) for key in ("one", "two", "three", "four")}
    by_own_header = hashes.owner_of_salt(tenants.salt_of_name(f"other/{HASHES['three']}"))
    by_header = hashes.owner_of_salt(tenants.salt_of_name("other"))
    assert sorted(senders.owners("other")) == sorted([marks["one"], marks["three"], by_header])
    assert senders.owners(f"other/{HASHES['three']}") == [marks["three"], by_own_header]
    (tmp_path / "other").write_text("four\n")
    assert [keys.reload(), keys.reload()] == [False, True]
    assert set(senders.owners("other")) == {marks["four"], marks["one"], marks["three"], by_header}
    without = Senders(ServeOptions(model="m"), keys)
    assert (without.owners(TWO), without.owners("unknown")) == ([marks["two"]], [])
    assert Senders(ServeOptions(model="m", shared_prefix_cache=True), keys).owners(TWO) == []


@pytest.mark.parametrize(
    ("headers", "options", "want"),
    [
        ({}, {}, 0.0),
        ({"x-slo-ttft-ms": "250"}, {}, 0.25),
        ({}, {"ttft_milliseconds": 2000}, 2.0),
        ({"x-slo-ttft-ms": "250"}, {"ttft_milliseconds": 2000}, 0.25),
    ],
)
def test_the_objective_is_the_request_s_own_or_the_server_s(keys, headers, options, want):
    assert sender(keys, headers=headers, **options).ttft_s == want


PEER = "x-kvasir-kv-peer"


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("10.0.0.2:8002;bytes=4096", ("10.0.0.2:8002", 4096)),
        ("[fd00::2]:8002;bytes=0", ("[fd00::2]:8002", 0)),
    ],
)
def test_a_replica_that_holds_the_prefix_is_read_where_blocks_are_fetched(keys, value, want):
    made = sender(keys, headers={PEER: value}, kv_transfer_port=0)
    assert (made.kv_peer, made.kv_peer_bytes) == want
    without = sender(keys, headers={PEER: value})
    assert (without.kv_peer, without.kv_peer_bytes) == ("", 0)


@pytest.mark.parametrize(
    "value", ["host:80;bytes=1", "10.0.0.2:8002", "10.0.0.2;bytes=1", "10.0.0.2:8002;bytes=-1", "", "1:2;bytes=3"]
)
def test_a_peer_that_is_no_address_is_refused(keys, value):
    with pytest.raises(Refused):
        sender(keys, headers={PEER: value}, kv_transfer_port=0)


@pytest.mark.parametrize(("port", "want"), [(8002, "10.0.0.2:8002"), (0, "10.0.0.2:8002"), (8003, "")])
def test_a_peer_has_the_port_of_this_replica_or_is_none(keys, port, want):
    made = sender(keys, headers={PEER: "10.0.0.2:8002;bytes=4096"}, kv_transfer_port=port)
    assert made.kv_peer == want


def test_a_peer_may_be_named_to_compute_the_prompt(keys):
    made = sender(keys, headers={PEER: "10.0.0.2:8002;prefill"}, kv_transfer_port=8002)
    assert (made.kv_peer, made.kv_peer_bytes, made.kv_peer_computes) == ("10.0.0.2:8002", 0, True)
