"""Which keys open which services, and what who has none learns."""

import pytest

from fakes.gateway import grant, pod, service, table
from kvasir_api import openai_errors
from kvasir_api.tenant_keys import TenantKeys
from kvasir_gateway.tenant_access import MOST_KEY_BYTES, PresentedKeys, TenantAccess

TABLE = table(
    [service("chat", model="org/chat"), service("code"), service("open", namespace="free")], [pod("chat", "one")]
)
ACCESS = TenantAccess(
    TenantKeys(
        tenants=(
            grant("all", "k-all"),
            grant("chatter", "k-chat", services=("chat",)),
            grant("leaving", "k-old", until=100.0),
            grant("elsewhere", "k-else", namespace="other"),
        )
    )
)


def with_key(key):
    return PresentedKeys({"authorization": f"Bearer {key}"})


def names(key, now=50.0):
    return sorted(ACCESS.visible(TABLE, with_key(key), now).by_model)


@pytest.mark.parametrize(
    ("headers", "count"),
    [
        ({}, 0),
        ({"authorization": "Bearer a"}, 1),
        ({"authorization": "bearer  a "}, 1),
        ({"authorization": "Basic a"}, 0),
        ({"authorization": "Bearer "}, 0),
        ({"x-api-key": "a"}, 1),
        ({"authorization": "Bearer a", "x-api-key": "b"}, 2),
        ({"authorization": "Bearer " + "a" * (MOST_KEY_BYTES + 1)}, 0),
        ({"x-api-key": "\u2603"}, 1),
    ],
)
def test_keys_are_found_where_clients_send_them(headers, count):
    assert len(PresentedKeys(headers).digests) == count


@pytest.mark.parametrize(
    ("key", "now", "visible"),
    [
        ("k-all", 50.0, ["code", "open", "org/chat"]),
        ("k-chat", 50.0, ["open", "org/chat"]),
        ("k-old", 99.9, ["code", "open", "org/chat"]),
        ("k-old", 100.0, ["open"]),
        ("k-else", 50.0, ["open"]),
        ("wrong", 50.0, ["open"]),
        ("", 50.0, ["open"]),
    ],
)
def test_a_caller_sees_the_services_that_its_key_opens(key, now, visible):
    assert names(key, now) == visible


def test_a_name_with_its_namespace_opens_nothing_more():
    seen = ACCESS.visible(TABLE, with_key("k-chat"), 50.0)
    assert seen.service("default/code") is None
    assert seen.service("default/chat") is not None


def test_either_key_of_a_request_opens():
    both = PresentedKeys({"authorization": "Bearer wrong", "x-api-key": "k-all"})
    found = ACCESS.tenant("default", both, 50.0)
    assert found is not None
    assert found.name == "all"


@pytest.mark.parametrize(
    ("bearer", "other", "owner"),
    [("k-old", "", "leaving"), ("k-old", "k-all", "all"), ("k-all", "k-old", "all"), ("wrong", "", None)],
)
def test_a_key_that_ended_just_now_is_its_tenants_unless_another_one_is_valid(bearer, other, owner):
    presented = PresentedKeys({"authorization": f"Bearer {bearer}", "x-api-key": other})
    found = ACCESS.owner("default", presented, 200.0)
    assert (found.name if found else None) == owner


def test_without_tenants_all_is_open():
    access = TenantAccess(TenantKeys())
    assert access.visible(TABLE, with_key(""), 0.0) is TABLE
    assert not access.any_closed


@pytest.mark.parametrize(
    ("key", "status"), [("", 401), ("wrong", 401), ("k-old", 401), ("k-all", 404), ("k-else", 404)]
)
def test_who_has_no_key_does_not_learn_which_names_there_are(key, status):
    missing = openai_errors.model_not_found("code")
    assert ACCESS.refusal(with_key(key), 200.0, missing).status == status


def test_where_nothing_is_closed_a_missing_model_is_missing():
    missing = openai_errors.model_not_found("code")
    assert TenantAccess(TenantKeys()).refusal(with_key(""), 0.0, missing) is missing
