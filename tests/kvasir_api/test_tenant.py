"""The declaration of Tenant, as the API server gets it."""

import pytest
from pydantic import ValidationError

from kvasir_api import crd, names
from kvasir_api.tenant import Tenant, TenantSpec


def test_a_tenant_without_limits_may_send_what_it_wants():
    spec = TenantSpec.model_validate({"secretName": "keys"})
    limits = spec.limits
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent_requests) == (0, 0, 0)
    assert (spec.grace_seconds, spec.services, spec.priority, spec.weight) == (0, [], None, 1)


@pytest.mark.parametrize(
    "fields",
    [{}, {"secretName": "Big"}, {"secretName": "a", "entry": "a/b"}, {"secretName": "a", "weight": 0}],
)
def test_what_is_no_tenant_is_refused(fields):
    with pytest.raises(ValidationError):
        TenantSpec.model_validate(fields)


def test_the_definition_has_a_status_of_its_own():
    definition = crd.tenants()
    (version,) = definition["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    assert definition["metadata"]["name"] == f"{names.TENANT_PLURAL}.{names.GROUP}"
    assert Tenant.model_validate({"spec": {"secretName": "a"}}).status.keys == 0
