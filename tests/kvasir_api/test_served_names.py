"""Who holds a served name."""

import pytest

from fakes.manifests import service
from kvasir_api.served_names import NameClaim, NameConflict, conflict, name_claims, owners, served_name


def claim(namespace, name, created, served="m", *, refused=False):
    return NameClaim(served_name=served, namespace=namespace, name=name, created=created, refused=refused)


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


def test_a_claim_that_was_refused_never_holds_the_name():
    assert owners([claim("a", "x", "2026-01-01T00:00:00Z", refused=True)]) == {}
    again = claim("b", "x", "2026-03-01T00:00:00Z")
    assert owners([claim("a", "x", "2026-01-01T00:00:00Z", refused=True), again]) == {"m": again}


@pytest.mark.parametrize(
    ("mine", "others", "found"),
    [
        (claim("a", "x", "2026-01-01T00:00:00Z"), [], None),
        (claim("a", "x", "2026-01-01T00:00:00Z"), [claim("b", "y", "2026-02-01T00:00:00Z")], None),
        (claim("a", "x", "2026-03-01T00:00:00Z"), [claim("a", "y", "2026-02-01T00:00:00Z")], ("a/y", False)),
        (claim("a", "x", "2026-03-01T00:00:00Z"), [claim("b", "y", "2026-02-01T00:00:00Z")], ("b/y", True)),
        (claim("a", "x", "2026-01-01T00:00:00Z", refused=True), [], ("", True)),
        (
            claim("a", "x", "2026-01-01T00:00:00Z", refused=True),
            [claim("b", "y", "2026-02-01T00:00:00Z", refused=True)],
            ("", True),
        ),
        (
            claim("a", "x", "2026-01-01T00:00:00Z", refused=True),
            [claim("a", "y", "2026-02-01T00:00:00Z")],
            ("a/y", True),
        ),
        (claim("a", "x", "2026-03-01T00:00:00Z"), [claim("b", "y", "2026-02-01T00:00:00Z", refused=True)], None),
    ],
    ids=[
        "alone",
        "older",
        "same namespace",
        "other namespace",
        "free",
        "free but refused to all",
        "taken",
        "not theirs",
    ],
)
def test_why_a_service_does_not_own_a_name(mine, others, found):
    want = found and NameConflict(served_name="m", holder=found[0], refused=found[1])
    assert conflict(mine, others) == want


def test_what_was_refused_is_read_from_the_status():
    named = service(model={"uri": "file:///m", "servedName": "big", "aliases": ["a"]}) | {
        "status": {"refusedNames": ["a", "gone"]}
    }
    assert [(c.served_name, c.refused) for c in name_claims(named)] == [("big", False), ("a", True)]


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
