"""Who holds a served name."""

import pytest

from fakes.manifests import service
from kvasir_api.served_names import NameClaim, name_claims, owners, served_name


def claim(namespace, name, created, served="m"):
    return NameClaim(served_name=served, namespace=namespace, name=name, created=created)


@pytest.mark.parametrize(
    ("made", "holder"),
    [
        ([claim("b", "x", "2026-01-02T00:00:00Z"), claim("a", "x", "2026-01-01T00:00:00Z")], ("a", "x")),
        ([claim("b", "x", "2026-01-01T00:00:00Z"), claim("a", "y", "2026-01-01T00:00:00Z")], ("a", "y")),
        ([claim("a", "y", "2026-01-01T00:00:00Z"), claim("a", "x", "2026-01-01T00:00:00Z")], ("a", "x")),
    ],
)
def test_oldest_claim_holds_the_name(made, holder):
    held = owners(made)["m"]
    assert (held.namespace, held.name) == holder


def test_names_are_held_independently():
    made = [claim("a", "x", "2026-01-01T00:00:00Z"), claim("a", "y", "2026-01-02T00:00:00Z", served="other")]
    assert {name: c.name for name, c in owners(made).items()} == {"m": "x", "other": "y"}


def test_a_service_without_a_served_name_serves_under_its_own():
    assert (served_name("x", ""), served_name("x", "big")) == ("x", "big")


@pytest.mark.parametrize(
    ("model", "served"),
    [
        ({}, ["tiny"]),
        ({"servedName": "big"}, ["big"]),
        ({"aliases": ["a", "b"]}, ["tiny", "a", "b"]),
        ({"servedName": "big", "aliases": ["big", "a"]}, ["big", "a"]),
    ],
)
def test_a_service_claims_all_its_names_once(model, served):
    found = name_claims(service(model=model))
    assert [c.served_name for c in found] == served
    assert {(c.namespace, c.name, c.created) for c in found} == {("default", "tiny", "2026-01-01T00:00:00Z")}
