"""Who holds a served name."""

import pytest

from kvasir_api.claims import Claim, holders, served_name


def claim(namespace, name, created, served="m"):
    return Claim(served_name=served, namespace=namespace, name=name, created=created)


@pytest.mark.parametrize(
    ("claims", "holder"),
    [
        ([claim("b", "x", "2026-01-02T00:00:00Z"), claim("a", "x", "2026-01-01T00:00:00Z")], ("a", "x")),
        ([claim("b", "x", "2026-01-01T00:00:00Z"), claim("a", "y", "2026-01-01T00:00:00Z")], ("a", "y")),
        ([claim("a", "y", "2026-01-01T00:00:00Z"), claim("a", "x", "2026-01-01T00:00:00Z")], ("a", "x")),
    ],
)
def test_oldest_claim_holds_the_name(claims, holder):
    held = holders(claims)["m"]
    assert (held.namespace, held.name) == holder


def test_names_are_held_independently():
    claims = [claim("a", "x", "2026-01-01T00:00:00Z"), claim("a", "y", "2026-01-02T00:00:00Z", served="other")]
    assert {name: c.name for name, c in holders(claims).items()} == {"m": "x", "other": "y"}


def test_a_service_without_a_served_name_serves_under_its_own():
    assert (served_name("x", ""), served_name("x", "big")) == ("x", "big")
