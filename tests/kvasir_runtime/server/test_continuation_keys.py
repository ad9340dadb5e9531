"""Keys from files that change under a running server."""

import pytest

from kvasir_runtime.server import continuation_keys
from kvasir_runtime.server.continuation_keys import ContinuationKeys

A, B = "a" * 20, "b" * 20


def loaded(path):
    keys = ContinuationKeys(str(path))
    keys.load()
    return keys


def test_the_first_of_a_file_signs_and_a_change_is_seen_when_it_is_loaded(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{A}\n\n{B}\n")
    keys = loaded(path)
    first, second = keys.current
    path.write_text(f"{B}\n{A}\n")
    assert keys.current == (first, second)
    keys.load()
    assert keys.current == (second, first)


def test_a_mounted_secret_is_read_in_order_of_its_files(tmp_path):
    (tmp_path / "..data").mkdir()
    (tmp_path / "2").write_text(B)
    (tmp_path / "1").write_text(A)
    (tmp_path / "alone").write_text(f"{A}\n{B}")
    assert len(continuation_keys.read(str(tmp_path))) == 4
    (tmp_path / "alone").unlink()
    found = continuation_keys.read(str(tmp_path))
    (tmp_path / "2").unlink()
    assert continuation_keys.read(str(tmp_path)) == found[:1]


def test_what_cannot_be_read_leaves_the_last_keys(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_text(A)
    keys = loaded(path)
    found = keys.current
    for breaks in (lambda: path.write_text("short"), path.unlink):
        breaks()
        for _ in range(3):
            keys.load()
        assert keys.current == found
    assert len(caplog.records) == 2, "each fault is logged once in a row"
    assert "fewer than 16 characters" in caplog.text
    assert "short" not in caplog.text


@pytest.mark.parametrize("path", ["", "/nowhere/at/all"])
def test_without_a_file_there_is_no_key(path):
    assert loaded(path).current == ()
