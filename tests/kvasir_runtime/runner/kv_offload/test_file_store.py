"""Blocks in a file: what is found is always right, whoever writes, dies, damages or fills the disk meanwhile."""

import errno
import fcntl
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from fakes import store_process
from fakes.store_process import BLOCK_BYTES, LIMIT_BYTES, NAME, content, found, key, opened
from kvasir_runtime.core.plan import HostChanges
from kvasir_runtime.runner.kv_offload import file_store, store_layout
from kvasir_runtime.runner.kv_offload.file_store import open_store

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(store_process.__file__).parents[1])}
SLOTS = store_layout.num_slots(LIMIT_BYTES, BLOCK_BYTES)


def put(store, *numbers):
    return store.put([(key(number), content(number)) for number in numbers])


def path_of(folder):
    return folder / f"{NAME}{file_store.SUFFIX}"


def test_a_block_is_found_again_by_this_process_and_the_next(tmp_path):
    store = opened(tmp_path)
    assert put(store, 1, 2) == 2
    assert put(store, 2, 3) == 1, "what is there is not copied again"
    assert found(store, [1, 2, 3, 4]) == [1, 2, 3]
    store.close()
    again = opened(tmp_path)
    assert again.salt == store.salt
    assert set(again.changes().added) == {key(1), key(2), key(3)}
    assert found(again, [1, 2, 3, 4]) == [1, 2, 3]


def test_only_its_owner_may_read_the_file(tmp_path):
    opened(tmp_path / "kv")
    assert path_of(tmp_path / "kv").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    path_of(tmp_path / "kv").chmod(0o640)
    with pytest.raises(PermissionError, match="others may read it"):
        opened(tmp_path / "kv")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"mine")
    path_of(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        opened(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"


def test_the_file_stays_within_its_limit_and_gives_away_what_was_used_longest_ago(tmp_path):
    store = opened(tmp_path)
    for number in range(SLOTS):
        put(store, number)
    assert found(store, [0]) == [0]
    assert put(store, 1000, 1001) == 2
    assert found(store, [0, 1, 2, 3, 1000, 1001]) == [0, 3, 1000, 1001]
    assert path_of(tmp_path).stat().st_size <= LIMIT_BYTES
    changes = store.changes()
    assert key(1) not in changes.added
    assert {key(0), key(1000)} <= set(changes.added)


def test_two_processes_find_each_others_blocks(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path)
    assert first.salt == second.salt
    put(first, 1)
    assert second.changes() == HostChanges(added=(key(1),))
    assert found(second, [1]) == [1]
    for number in range(2, 2 + SLOTS):
        put(second, number)
    changes = first.changes()
    assert changes.removed == (key(1),)
    assert len(changes.added) == SLOTS
    assert found(first, [1, 2]) == [2]


def test_what_one_process_reads_the_other_keeps_longer(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path)
    for number in range(SLOTS):
        put(first, number)
    assert found(second, [0]) == [0]
    put(first, 1000)
    assert found(second, [0, 1, 1000]) == [0, 1000]


def test_forgetting_erases_the_file_for_all(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path)
    put(first, 1, 2)
    second.changes()
    first.begin_forgetting()
    assert found(first, [1]) == []
    assert put(first, 3) == 0
    first.forget()
    changes = second.changes()
    assert changes.reset
    assert changes.added == ()
    assert found(second, [1, 2, 3]) == []
    assert bytes(content(1))[:1000] not in path_of(tmp_path).read_bytes()
    assert put(first, 4) == 1
    assert found(second, [4]) == [4]


def test_a_block_written_while_another_process_forgot_is_not_found(tmp_path, monkeypatch):
    first, second = opened(tmp_path), opened(tmp_path)
    write = first._write_slots

    def forget_meanwhile(*given):
        written = write(*given)
        second.forget()
        return written

    monkeypatch.setattr(first, "_write_slots", forget_meanwhile)
    assert put(first, 1) == 0
    assert found(first, [1]) == found(second, [1]) == []


def test_a_slot_that_was_taken_over_during_a_long_write_is_not_entered(tmp_path, monkeypatch):
    first, second = opened(tmp_path), opened(tmp_path)
    write = first._write_slots

    def overtaken(*given):
        for number in range(100, 100 + SLOTS):
            put(second, number)
        return write(*given)

    monkeypatch.setattr(first, "_write_slots", overtaken)
    assert put(first, 1) == 0
    assert found(second, [1]) == []
    assert len(found(second, list(range(100, 100 + SLOTS)))) == SLOTS - 1, "the late write damaged one, which is a miss"


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_file_is_a_miss(tmp_path, seed):
    chance, numbers = random.Random(seed), list(range(SLOTS))
    store = opened(tmp_path)
    put(store, *numbers)
    raw = bytearray(path_of(tmp_path).read_bytes())
    for _ in range(400):
        start = chance.choice([0, store_layout.PAGE, store_layout.PAGE, chance.randrange(len(raw))])
        place = start + chance.randrange(min(4096, len(raw) - start))
        raw[place] ^= 1 << chance.randrange(8)
    with path_of(tmp_path).open("r+b") as file:
        file.write(raw)
    assert len(found(store, numbers)) < SLOTS
    fresh = opened(tmp_path)
    found(fresh, numbers)
    put(store, 7, 1000)
    assert found(fresh, [1000]) in ([1000], [])
    put(fresh, 2000)
    assert found(fresh, [2000]) == [2000]


@pytest.mark.parametrize("size", [0, 50, store_layout.PAGE, store_layout.PAGE + 100, LIMIT_BYTES // 2])
def test_a_file_that_is_cut_short_is_a_miss(tmp_path, size):
    store = opened(tmp_path)
    put(store, *range(SLOTS))
    os.truncate(path_of(tmp_path), size)
    assert len(found(store, list(range(SLOTS)))) < SLOTS
    store.changes()
    put(store, 1000)
    assert found(store, [1000]) == [1000]
    assert found(opened(tmp_path), [1000]) == [1000]


@pytest.mark.parametrize("junk", [b"", b"x", b"\0" * 5000, b"KVASIRKV" + b"\xff" * 9000])
def test_a_file_of_something_else_is_made_again(tmp_path, junk):
    path_of(tmp_path).write_bytes(junk)
    path_of(tmp_path).chmod(0o600)
    store = opened(tmp_path)
    assert put(store, 1) == 1
    assert found(opened(tmp_path), [1]) == [1]


def test_a_file_of_another_size_begins_again(tmp_path):
    small = opened(tmp_path)
    put(small, 1)
    large = opened(tmp_path, limit_bytes=3 * LIMIT_BYTES)
    assert large.num_slots > small.num_slots
    assert found(large, [1]) == []
    put(large, *range(10, 10 + SLOTS + 5))
    assert len(found(small, list(range(10, 10 + SLOTS + 5)))) == SLOTS + 5, "the older process follows"


def test_a_process_that_holds_the_lock_and_stops_delays_no_other_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(file_store, "LOCK_S", 0.01)
    store = opened(tmp_path)
    put(store, 1)
    other = os.open(path_of(tmp_path), os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert put(store, 2) == 0
    assert found(store, [1]) == [1], "reading takes no lock"
    with pytest.raises(file_store.LockBusyError):
        opened(tmp_path)
    os.close(other)
    assert put(store, 2) == 1


def test_a_full_disk_is_a_block_less(tmp_path):
    script = (
        "import sys, resource, pathlib; from fakes.store_process import *;"
        "folder = pathlib.Path(sys.argv[1]); store = opened(folder);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES // 3}, {LIMIT_BYTES // 3}));"
        f"kept = [store.put([(key(n), content(n))]) for n in range({SLOTS})];"
        "assert 0 < sum(kept) < len(kept), kept;"
        f"assert found(store, list(range({SLOTS}))) == [n for n, one in enumerate(kept) if one];"
        "print('whole')"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.returncode) == ("whole\n", 0), run.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_limit_that_holds_no_table_is_an_error(tmp_path):
    with pytest.raises(OSError, match=r"File too large|No space|Invalid"):
        open_store(tmp_path, NAME, BLOCK_BYTES, 1 << 70)


def test_processes_that_are_killed_while_they_write_leave_only_right_blocks(tmp_path):
    chance, num_keys = random.Random(3), 60
    store = opened(tmp_path)
    for round_ in range(6):
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "fakes.store_process", str(tmp_path), str(num_keys), str(2 * round_ + one)],
                stdout=subprocess.PIPE,
                env=ENVIRONMENT,
            )
            for one in range(2)
        ]
        try:
            for child in children:
                assert child.stdout.readline() == b"writing\n"
            seen, enough = 0, chance.randint(5, 100)
            while seen < enough:
                store.changes()
                seen += len(found(store, chance.sample(range(num_keys), 8)))
        finally:
            for child in children:
                child.send_signal(signal.SIGKILL)
                child.wait()
                child.stdout.close()
        assert found(opened(tmp_path), list(range(num_keys)))
        assert put(store, 1000 + round_) == 1, "a lock of the dead stands in nobody's way"
        assert found(store, [1000 + round_]) == [1000 + round_]


def test_one_torn_header_hides_no_block_for_long(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path)
    put(first, 1, 2)
    assert set(second.changes().added) == {key(1), key(2)}
    with path_of(tmp_path).open("r+b") as file:
        whole = file.read(store_layout.HEADER_BYTES)
        os.pwrite(file.fileno(), bytes(20), 0)
        assert second.changes() == HostChanges(reset=True)
        os.pwrite(file.fileno(), whole, 0)
    assert set(second.changes().added) == {key(1), key(2)}
    assert found(second, [1, 2]) == [1, 2]


def test_one_failed_read_hides_no_block_for_long(tmp_path, monkeypatch):
    store, failures, pread = opened(tmp_path), [True], os.pread
    put(store, 1)

    def fails_once(*arguments):
        if failures:
            failures.pop()
            raise OSError(errno.EIO, "Input/output error")
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", fails_once)
    assert found(store, [1]) == []
    assert found(store, [1]) == [1]


def test_a_load_waits_for_no_lock(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(file_store, "LOCK_S", 60.0)
    store = opened(tmp_path)
    put(store, 1)
    other = os.open(path_of(tmp_path), os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    before = time.monotonic()
    assert found(store, [1]) == [1]
    assert time.monotonic() - before < 30
    assert caplog.text == ""
    os.close(other)


def test_a_block_that_cannot_be_renewed_is_loaded_and_the_log_says_so(tmp_path, monkeypatch, caplog):
    store = opened(tmp_path)
    put(store, 1)

    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fails)
    assert found(store, [1]) == [1]
    assert "blocks that were read could not be renewed in the KV cache's file: No space left on device" in caplog.text


def test_all_that_one_process_counts_as_stored_is_found_by_the_next_call_of_another(tmp_path):
    first = opened(tmp_path)
    put(first, 1)
    second = opened(tmp_path)
    assert second.changes() == HostChanges(added=(key(1),))
    for number in range(2, 20):
        assert put(first, number) == 1
        assert second.changes() == HostChanges(added=(key(number),)), "however soon after the last call"
    assert second.changes() is None


def test_an_entry_that_was_read_while_it_was_written_is_found_once_it_is_whole(tmp_path):
    second, first = opened(tmp_path), opened(tmp_path)
    put(first, 1)
    with path_of(tmp_path).open("r+b") as file:
        written = os.pread(file.fileno(), store_layout.PAGE + store_layout.ENTRY_BYTES, 0)
        header = replace(store_layout.decoded(written), changes=1)  # the header comes behind the entries
        os.pwrite(file.fileno(), header.encoded(), 0)
        os.pwrite(file.fileno(), bytes(4), store_layout.entry_at(0))
        assert second.changes() is None
        os.pwrite(file.fileno(), written, 0)
    assert second.changes() == HostChanges(added=(key(1),))


def test_a_dropped_block_is_found_by_no_process(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path)
    put(first, 1, 2)
    assert found(second, [1, 2]) == [1, 2]
    first.drop([key(1), key(7)])
    assert first.changes().added == (key(2),)
    assert second.changes().removed == (key(1),)
    assert found(first, [1, 2]) == found(second, [1, 2]) == found(opened(tmp_path), [1, 2]) == [2]


def test_a_block_that_cannot_be_dropped_now_is_hidden_and_dropped_later(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(file_store, "LOCK_S", 0.01)
    first, second = opened(tmp_path), opened(tmp_path)
    put(first, 1, 2)
    other = os.open(path_of(tmp_path), os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    first.drop([key(1)])
    assert "blocks are dropped later" in caplog.text
    assert found(first, [1, 2]) == [2]
    os.close(other)
    put(first, 3)
    assert found(second, [1, 2, 3]) == [2, 3]
    assert put(first, 1) == 1
    assert found(second, [1]) == [1]


def test_processes_with_another_limit_share_the_file_as_the_last_one_made_it(tmp_path):
    first = opened(tmp_path)
    put(first, 1)
    second = opened(tmp_path, limit_bytes=LIMIT_BYTES // 2)
    assert second.salt == first.salt
    assert found(second, [1]) == []
    put(second, 2)
    assert first.changes() == HostChanges(added=(key(2),), reset=True)
    assert found(first, [1, 2]) == [2]
    for number in range(10, 10 + SLOTS):
        put(first, number)
    assert path_of(tmp_path).stat().st_size <= LIMIT_BYTES // 2


def test_a_checksum_that_is_known_is_kept_and_one_that_is_wrong_makes_a_miss(tmp_path):
    store = opened(tmp_path)
    right, wrong = key(1), key(2)
    crcs = {right: crc32(content(1), crc32(right)), wrong: 7}
    assert store.put([(right, content(1)), (wrong, content(2))], crcs) == 2
    assert found(store, [1, 2]) == [1]
