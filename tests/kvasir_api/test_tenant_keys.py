"""The document of tenants between operator and gateways."""

import msgspec
import pytest

from kvasir_api import tenant_keys
from kvasir_api.tenant_keys import KeyHash, TenantGrant, TenantKeys

KEY = KeyHash(sha256=tenant_keys.digest(b"secret"), until=5.0)


def test_it_comes_back_as_it_was():
    grant = TenantGrant(namespace="a", name="t", keys=(KEY,), services=("s",), tokens_per_minute=7, priority=-3)
    keys = TenantKeys(tenants=(grant, TenantGrant(namespace="b", name="t")))
    document = tenant_keys.encode(keys)
    assert tenant_keys.decode(document) == keys
    assert b"secret" not in document


def test_nothing_has_no_tenants():
    assert tenant_keys.decode(b"") == TenantKeys()


@pytest.mark.parametrize("document", [b"{", b"[]", b'{"tenants": [{"name": "t"}]}', b'{"tenants": {}}'])
def test_what_is_no_document_is_refused(document):
    with pytest.raises(msgspec.MsgspecError):
        tenant_keys.decode(document)


def test_a_hash_has_the_length_of_a_sha256():
    with pytest.raises(msgspec.MsgspecError):
        tenant_keys.decode(b'{"tenants": [{"namespace": "a", "name": "t", "keys": [{"sha256": "AAAA"}]}]}')


@pytest.mark.parametrize(("until", "now", "valid"), [(0.0, 1e12, True), (5.0, 4.9, True), (5.0, 5.0, False)])
def test_a_key_ends_with_its_grace(until, now, valid):
    assert KeyHash(sha256=KEY.sha256, until=until).valid(now) is valid


@pytest.mark.parametrize(("services", "service", "may"), [((), "x", True), (("s",), "s", True), (("s",), "x", False)])
def test_a_tenant_uses_the_services_that_it_lists_or_all(services, service, may):
    assert TenantGrant(namespace="a", name="t", services=services).may_use(service) is may
