"""A reader follows a pod's set by numbers, and knows nothing rather than something that it cannot prove."""

import pytest

from kvasir_api.prefix_digest import WHOLE, FollowedPrefixes, PrefixSet, split
from kvasir_api.state import PrefixDigest

A, B, C = (bytes([number]) * 8 for number in (1, 2, 3))


def digest(*members: bytes, sequence: int, after: int, added: bytes = b"", removed: bytes = b"") -> PrefixDigest:
    """A true document of a pod with these members."""
    made = PrefixSet(members)
    return PrefixDigest(
        sequence=sequence,
        entries=len(made.hashes),
        checksum=made.checksum,
        after=after,
        added=added,
        removed=removed,
    )


def reader_of(*members: bytes, sequence: int) -> FollowedPrefixes:
    reader = FollowedPrefixes()
    assert reader.take("pod", digest(*members, sequence=sequence, after=WHOLE, added=b"".join(members)))
    return reader


def test_joined_hashes_are_split():
    assert split(A + B) == [A, B]
    assert split(b"") == []


def test_the_checksum_follows_from_the_members_alone():
    one, other = PrefixSet([A, B, C, C]), PrefixSet([B, A])
    assert one.checksum == other.checksum == "0303030303030303"
    assert PrefixSet().checksum == PrefixDigest().checksum


def test_a_new_reader_requests_the_whole_set():
    reader = FollowedPrefixes()
    assert (reader.instance, reader.after, reader.hashes) == ("", WHOLE, set())
    reader = reader_of(A, B, sequence=7)
    assert (reader.instance, reader.after, reader.hashes) == ("pod", 7, {A, B})


def test_changes_are_followed_in_any_number():
    reader = reader_of(A, B, sequence=7)
    assert reader.take("pod", digest(B, C, sequence=9, after=7, added=C, removed=A))
    assert (reader.after, reader.hashes) == (9, {B, C})
    assert reader.take("pod", digest(B, C, sequence=9, after=9))
    assert reader.hashes == {B, C}


@pytest.mark.parametrize(
    ("instance", "document"),
    [
        ("pod", digest(A, B, C, sequence=9, after=8, added=C)),  # change 8 is missing
        ("pod", digest(A, B, C, sequence=8, after=7)),  # it says that something was added, and not what
        ("pod", digest(A, C, sequence=9, after=7, added=C)),  # what was removed is missing
        ("pod", digest(A, C, sequence=8, after=7, added=B)),  # the right number of entries, another one
        ("restarted", digest(A, B, sequence=7, after=7)),
    ],
)
def test_what_cannot_be_proved_is_forgotten_and_read_as_a_whole(instance, document):
    reader = reader_of(A, B, sequence=7)
    assert not reader.take(instance, document)
    assert (reader.instance, reader.after, reader.hashes) == ("", WHOLE, set())
    assert reader.take(instance, digest(C, sequence=3, after=WHOLE, added=C))
    assert reader.hashes == {C}


def test_a_whole_set_that_is_damaged_is_not_taken():
    reader = FollowedPrefixes()
    assert not reader.take("pod", digest(A, B, sequence=2, after=WHOLE, added=A + C))
    assert reader.hashes == set()
