"""Who holds a served name."""

import pytest

from fakes.manifests import service
from kvasir_api.served_names import (
    NameClaim,
    NameConflict,
    conflict,
    name_claims,
    owners,
    reserved_names,
    served_name,
)


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


OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("mine", "others", "found"),
    [
        (claim("b", "x", OLD), [], NameConflict(served_name="m", holder="", refused=True, reserved_for="a")),
        (claim("a", "x", NEW), [claim("b", "y", OLD)], None),
        (claim("a", "x", NEW, refused=True), [claim("b", "y", OLD)], None),
        (claim("a", "x", NEW), [claim("a", "y", OLD)], NameConflict(served_name="m", holder="a/y", refused=False)),
        (
            claim("a", "x", NEW, refused=True),
            [claim("a", "y", OLD, refused=True)],
            NameConflict(served_name="m", holder="a/y", refused=False),
        ),
    ],
    ids=["another namespace", "its namespace", "refused before", "older in its namespace", "both refused before"],
)
def test_a_reserved_name_is_that_of_services_of_its_namespace(mine, others, found):
    assert conflict(mine, others, reserved_for="a") == found


def test_the_owner_of_a_reserved_name_is_of_its_namespace():
    made = [claim("b", "y", OLD), claim("a", "x", NEW, refused=True), claim("b", "z", NEW, served="free")]
    assert {name: c.name for name, c in owners(made, {"m": "a"}).items()} == {"m": "x", "free": "z"}
    assert owners(made, {"m": "c"}).keys() == {"free"}


def test_reserved_names_are_read_from_their_last_sign():
    assert reserved_names(["chat=a", "org/m=1=b", "chat=a"]) == {"chat": "a", "org/m=1": "b"}


@pytest.mark.parametrize("given", ["chat", "=a", "chat=", "chat=A", "chat=a/b", "chat=-a", f"chat={'a' * 64}"])
def test_what_reserves_no_name_is_refused(given):
    with pytest.raises(ValueError, match="is not NAME=NAMESPACE"):
        reserved_names([given])


def test_a_name_cannot_be_reserved_twice():
    with pytest.raises(ValueError, match="chat cannot be reserved for a and b"):
        reserved_names(["chat=a", "chat=b"])


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
