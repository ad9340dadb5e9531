"""Rotation by age: a key is published before it signs, and trusted until what it signed is of no use."""

import pytest

from kvasir_operator.desired.signing_keys import OVERLAP_S, ROTATED_AFTER_S, SigningKey, is_due, signing, trusted

A, B = SigningKey(private="a", created=0.0), SigningKey(private="b", created=ROTATED_AFTER_S)


@pytest.mark.parametrize(
    ("now", "signs", "trusts"),
    [
        (B.created + 1.0, "a", "ab"),
        (B.created + OVERLAP_S - 1.0, "a", "ab"),
        (B.created + OVERLAP_S, "b", "ab"),
        (B.created + 2 * OVERLAP_S - 1.0, "b", "ab"),
        (B.created + 2 * OVERLAP_S, "b", "b"),
        (A.created - 3600.0, "a", "ab"),  # the clock was ahead when they were made
    ],
)
def test_two_keys_overlap(now, signs, trusts):
    assert signing((A, B), now).private == signs
    assert "".join(key.private for key in trusted((A, B), now)) == trusts
    assert not is_due((A, B), now)


def test_the_first_key_is_due_at_once_and_the_next_after_a_month():
    assert is_due((), 0.0)
    assert signing((), 0.0) is None
    assert signing((A,), 0.0) == A, "where there was none, nothing is to be waited for"
    assert not is_due((A,), ROTATED_AFTER_S - 1.0)
    assert is_due((A,), ROTATED_AFTER_S)


def test_what_signs_is_always_trusted_and_was_published_for_long():
    keys, published = (), {}
    for half_hour in range(48 * 100):
        now = half_hour * 1800.0
        keys = trusted(keys, now)
        if is_due(keys, now):
            keys = (*keys, SigningKey(private=str(half_hour), created=now))
        for key in keys:
            published.setdefault(key.private, now)
        found = signing(keys, now)
        assert found in keys
        assert published[found.private] <= now - OVERLAP_S or len(published) == 1
        assert len(keys) <= 2
    assert len(published) == 4
