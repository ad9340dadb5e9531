"""Rotation by age: a key is published before it signs, and trusted until what it signed is of no use."""

import pytest

from kvasir_api.ops_tokens import TOLERANCE_S
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
        (B.created - TOLERANCE_S, "a", "ab"),  # clocks differ a little
    ],
)
def test_two_keys_overlap(now, signs, trusts):
    assert signing((A, B), now).private == signs
    assert "".join(key.private for key in trusted((A, B), now)) == trusts
    assert not is_due((A, B), now)


def test_a_key_of_a_clock_that_was_ahead_is_replaced_and_trusted_until_then():
    now = A.created - TOLERANCE_S - 1.0
    assert signing((A, B), now) == A, "the next one is to be published first"
    assert is_due((A, B), now)
    keys = (A, B, SigningKey(private="c", created=now))
    assert not is_due(keys, now)
    assert (signing(keys, now), trusted(keys, now)) == (A, keys)
    now += OVERLAP_S
    assert signing(keys, now) == keys[-1]
    now += OVERLAP_S
    assert trusted(trusted(keys, now), now) == keys[-1:]


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
