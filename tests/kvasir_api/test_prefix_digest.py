"""A reader follows a pod's set by numbers, and knows nothing rather than something that it cannot prove."""

import pytest

from kvasir_api.prefix_digest import MOST_ENTRIES, PAUSE_DOCUMENTS, WHOLE, FollowedPrefixes, PrefixSet, split
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
        ("restarted", digest(A, B, sequence=7, after=7)),
    ],
)
def test_what_does_not_follow_is_forgotten_and_read_as_a_whole(instance, document):
    reader = reader_of(A, B, sequence=7)
    assert not reader.take(instance, document)
    assert (reader.instance, reader.after, reader.hashes) == ("", WHOLE, set())
    assert reader.take(instance, digest(C, sequence=3, after=WHOLE, added=C))
    assert reader.hashes == {C}


@pytest.mark.parametrize(
    "document",
    [
        digest(A, B, C, sequence=8, after=7),  # it says that something was added, and not what
        digest(A, C, sequence=9, after=7, added=C),  # what was removed is missing
        digest(A, C, sequence=9, after=7, added=C, removed=C),  # the right number of entries, another one
        digest(A, B, sequence=2, after=WHOLE, added=A + C),
        digest(A, sequence=2, after=WHOLE, added=A + B + B),
        digest(A, B, sequence=2, after=WHOLE, added=A + B + b"rest"),
    ],
)
def test_a_pod_that_contradicts_itself_is_read_again_after_a_pause(document):
    reader, whole = reader_of(A, B, sequence=7), digest(C, sequence=3, after=WHOLE, added=C)
    assert not reader.take("pod", document)
    for _ in range(PAUSE_DOCUMENTS):
        assert (reader.is_paused, reader.instance, reader.after, reader.hashes) == (True, "", WHOLE, set())
        assert not reader.take("restarted", whole)
    assert not reader.is_paused
    assert reader.take("pod", whole)
    assert reader.hashes == {C}


def test_a_refused_connection_ends_no_pause():
    reader = FollowedPrefixes()
    assert not reader.take("pod", digest(A, sequence=1, after=WHOLE))
    reader.forget()
    assert reader.is_paused


def named(first, count):
    return [number.to_bytes(8) for number in range(first, first + count)]


def test_a_set_grows_up_to_its_bound_and_no_further():
    whole, more = named(0, MOST_ENTRIES), named(MOST_ENTRIES, 1)
    reader = reader_of(*whole, sequence=1)
    assert len(reader.hashes) == MOST_ENTRIES
    changed = digest(*whole[1:], *more, sequence=3, after=1, added=more[0], removed=whole[0])
    assert reader.take("pod", changed)
    grown = digest(*whole[1:], *more, *named(90_000, 1), sequence=4, after=3, added=named(90_000, 1)[0])
    assert not reader.take("pod", grown)
    assert (reader.hashes, reader.is_paused) == (set(), True)


def test_true_documents_of_too_many_hashes_are_not_taken():
    """Each of them is chained to the one before it, so that the reader would follow without an end."""
    reader, members = FollowedPrefixes(), []
    for reading in range(3):
        added = named(90_000 * reading, 90_000)
        members += added
        after = WHOLE if not reading else 90_000 * reading
        reader.take("pod", digest(*members, sequence=len(members), after=after, added=b"".join(added)))
        assert len(reader.hashes) <= MOST_ENTRIES


def test_a_document_that_states_another_size_costs_no_work(monkeypatch):
    """It is seen by its length, before its hashes are read."""
    many = b"".join(named(0, MOST_ENTRIES + 1))
    documents = (
        digest(A, sequence=2, after=WHOLE, added=many),
        PrefixDigest(sequence=2, entries=MOST_ENTRIES + 1, after=WHOLE, added=many),
        digest(sequence=2, after=1, added=many[:-8], removed=many),
        PrefixDigest(sequence=2, entries=-1, after=1),
    )
    readers = [reader_of(A, sequence=1) for _ in documents]
    monkeypatch.setattr(PrefixSet, "toggle", None)
    for reader, document in zip(readers, documents, strict=True):
        assert not reader.take("pod", document)
        assert reader.is_paused
