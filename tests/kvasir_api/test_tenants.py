"""Salts and weights of tenants."""

import pytest

from kvasir_api import tenants
from kvasir_api.options import ServeOptions


def test_salts_are_told_apart_by_kind_and_never_change():
    assert tenants.salt_of_key(b"a").hex()[:16] == "8fde5dc70b195211"
    assert len({tenants.salt_of_key(b"a"), tenants.salt_of_key(b"b"), tenants.salt_of_name("a")}) == 3


@pytest.mark.parametrize(
    ("text", "want"), [("", {}), ("a=2", {"a": 2.0}), ("team=3,team/2=0.5,b=1", {"team": 3.0, "team/2": 0.5, "b": 1.0})]
)
def test_weights_are_read(text, want):
    assert tenants.weights(text) == want
    assert ServeOptions(model="m", tenant_weights=text).tenant_weights == text


@pytest.mark.parametrize("text", ["a", "a=", "a=-1", "a=0", "a=1,", "a=x", "a b=1", "a=1;b=2"])
def test_wrong_weights_are_rejected(text):
    with pytest.raises(ValueError, match=r"(?i)weight"):
        ServeOptions(model="m", tenant_weights=text)
