"""When authorities of pods are made, sign and go, and the Secret that pods of a namespace share."""

import pytest

from kvasir_operator.desired import pod_certificates as rules
from kvasir_operator.desired.namespace_secret import has_content
from kvasir_operator.desired.pod_certificates import (
    AUTHORITY_ROTATED_S,
    AUTHORITY_S,
    CERTIFICATE_S,
    DAY_S,
    PodAuthority,
)
from kvasir_operator.desired.signing_keys import OVERLAP_S


def one(created):
    return PodAuthority(certificate=f"c{created:g}\n", private_key="k", created=created)


FIRST, SECOND = one(0.0), one(AUTHORITY_ROTATED_S)
LATER = SECOND.created


@pytest.mark.parametrize(
    ("now", "signs", "verified_by"),
    [
        (0.0, FIRST, (FIRST,)),
        (LATER + OVERLAP_S - 1, FIRST, (FIRST, SECOND)),
        (LATER + OVERLAP_S, SECOND, (FIRST, SECOND)),
        (LATER + OVERLAP_S + CERTIFICATE_S - 1, SECOND, (FIRST, SECOND)),
        (LATER + OVERLAP_S + CERTIFICATE_S, SECOND, (SECOND,)),
    ],
)
def test_an_authority_is_trusted_before_it_signs_and_while_its_certificates_last(now, signs, verified_by):
    known = tuple(each for each in (FIRST, SECOND) if each.created <= now)
    assert rules.kept(known, now) == verified_by
    assert rules.issuer(rules.kept(known, now), now) == signs


@pytest.mark.parametrize(
    ("known", "now", "due"),
    [((), 0.0, True), ((FIRST,), AUTHORITY_ROTATED_S - 1, False), ((FIRST,), AUTHORITY_ROTATED_S, True)],
)
def test_an_authority_is_made_once_a_year(known, now, due):
    assert rules.is_authority_due(known, now) == due


def test_one_that_has_ended_is_not_kept_however_long_none_was_needed():
    assert rules.kept((FIRST,), AUTHORITY_S) == ()


def test_every_certificate_ends_before_its_authority():
    assert AUTHORITY_ROTATED_S + OVERLAP_S + CERTIFICATE_S < AUTHORITY_S
    assert rules.RENEWED_AFTER_S + 30 * DAY_S < CERTIFICATE_S


def test_the_secret_goes_with_the_last_of_its_services():
    owners = [{"metadata": {"name": name, "uid": f"uid-{name}"}} for name in ("a", "b")]
    secret = rules.pod_secret("team", owners, {"tls.crt": b"c"})
    assert [reference["uid"] for reference in secret["metadata"]["ownerReferences"]] == ["uid-a", "uid-b"]
    assert (secret["type"], secret["data"]) == ("kubernetes.io/tls", {"tls.crt": "Yw=="})
    assert not any(reference.get("controller") for reference in secret["metadata"]["ownerReferences"])


def test_an_authority_of_the_future_signs_only_where_there_is_no_other():
    ahead, now = one(AUTHORITY_ROTATED_S), 1000.0
    assert rules.is_authority_due((ahead,), now)
    assert rules.issuer((ahead,), now) == ahead
    assert rules.issuer((ahead, one(now)), now) == one(now)
    assert rules.kept((ahead, one(now)), now) == (ahead, one(now))


@pytest.mark.parametrize(
    ("age_s", "due"),
    [
        (rules.RENEWED_AFTER_S - rules.RENEWALS_SPREAD_S - 1, False),
        (rules.RENEWED_AFTER_S, True),
        (-900.0, False),
        (-901.0, True),
    ],
)
def test_a_certificate_is_due_by_its_age_and_where_it_is_of_the_future(age_s, due):
    assert rules.is_certificate_due("team", 1_000_000.0, 1_000_000.0 + age_s) == due


def test_renewals_of_many_namespaces_are_spread_over_days():
    days = [0] * 5
    for number in range(1000):
        days[int(rules.spread(f"team-{number}") * 5)] += 1
    assert min(days) > 100


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"data": {"tls.crt": "Yw==", "other": "eA=="}}, True),
        ({"data": {"tls.crt": "eA=="}}, False),
        ({"data": None}, False),
        ({"metadata": {"labels": {}}}, False),
    ],
)
def test_a_secret_is_compared_by_what_the_operator_gives_it(change, same):
    secret = rules.pod_secret("team", [{"metadata": {"name": "a", "uid": "uid-a"}}], {"tls.crt": b"c"})
    found = {**secret, **change, "metadata": {**secret["metadata"], **change.get("metadata", {})}}
    assert has_content(found, secret) == same
    fewer = rules.pod_secret("team", [], {"tls.crt": b"c"})
    assert not has_content(found, fewer)
    assert not has_content({}, secret)
