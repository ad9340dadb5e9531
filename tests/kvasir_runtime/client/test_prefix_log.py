"""What the API process gives readers: changes while it has them, else the whole set, whichever is smaller."""

from kvasir_api.prefix_digest import WHOLE, PrefixSet
from kvasir_runtime.client.prefix_log import PrefixLog
from kvasir_runtime.engine_reports import PrefixChanges

NAMES = [bytes([number]) * 8 for number in range(9)]


def log_of(*numbers: int, sequence: int = 10, most_changes: int = 4) -> PrefixLog:
    log = PrefixLog(most_changes=most_changes)
    log.take(PrefixChanges(sequence=sequence, hashes=b"".join(NAMES[n] for n in numbers), whole=True))
    return log


def change(log: PrefixLog, *numbers: int, sequence: int) -> None:
    log.take(PrefixChanges(sequence=sequence, hashes=b"".join(NAMES[n] for n in numbers)))


def told(log: PrefixLog, after: int | None) -> tuple[int, bytes, bytes]:
    document = log.digest(after)
    return document.after, document.added, document.removed


def test_a_reader_that_names_no_change_gets_the_summary():
    log = log_of(1, 2)
    document = log.digest()
    assert (document.sequence, document.entries, document.checksum) == (10, 2, PrefixSet(NAMES[1:3]).checksum)
    assert told(log, None) == told(log, 10) == (10, b"", b"")
    assert PrefixLog().digest().checksum == "0" * 16


def test_a_reader_gets_what_came_and_went_behind_its_change():
    log = log_of(1, 2, 3)
    change(log, 1, 5, sequence=12)
    assert told(log, 10) == (10, NAMES[5], NAMES[1])
    assert told(log, 11) == (11, NAMES[5], b"")
    change(log, 5, 1, sequence=14)
    assert told(log, 10) == (10, b"", b"")
    assert told(log, 12) == (12, NAMES[1], NAMES[5])


def test_a_reader_too_far_behind_or_of_another_past_gets_the_whole_set():
    log = log_of(1, 2)
    change(log, 3, 4, 5, 6, 7, sequence=15)
    for after in (WHOLE, 0, 10, 16):
        whole = log.digest(after)
        assert (whole.after, len(whole.added), whole.removed) == (WHOLE, 7 * 8, b"")
    assert told(log, 11)[0] == 11


def test_the_whole_set_is_sent_where_it_is_smaller_than_the_changes():
    log = log_of(1, 2, 3)
    change(log, 1, 2, 3, 4, sequence=14)
    assert told(log, 10) == (WHOLE, NAMES[4], b"")
    assert told(log, 13) == (13, NAMES[4], b"")
