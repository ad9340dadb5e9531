"""Keys from files that change under a running server."""

import pytest

from kvasir_runtime.server.key_file import KeyFile


def upper(found):
    if b"bad" in found:
        raise ValueError("a line is bad")
    return tuple(line.upper() for line in found)


def loaded(path):
    keys = KeyFile(str(path), upper, (b"none",))
    keys.load()
    return keys


def test_a_change_is_seen_when_it_is_loaded(tmp_path):
    path = tmp_path / "keys"
    path.write_text("a\n\n b \n")
    keys = loaded(path)
    path.write_text("c")
    assert keys.current == (b"A", b"B")
    keys.load()
    assert keys.current == (b"C",)
    path.write_text("")
    keys.load()
    assert keys.current == ()


def test_a_mounted_secret_is_read_in_order_of_its_files(tmp_path):
    (tmp_path / "..data").mkdir()
    (tmp_path / "2").write_text("second")
    (tmp_path / "1").write_text("first\nof two")
    assert loaded(tmp_path).current == (b"FIRST", b"OF TWO", b"SECOND")


def test_what_cannot_be_read_leaves_the_last_keys(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_text("a")
    keys = loaded(path)
    for breaks in (lambda: path.write_text("bad"), path.unlink):
        breaks()
        for _ in range(3):
            keys.load()
        assert keys.current == (b"A",)
    assert len(caplog.records) == 2, "each fault is logged once in a row"
    assert "a line is bad" in caplog.text


@pytest.mark.parametrize(("path", "watched"), [("", False), ("/nowhere/at/all", True)])
def test_without_a_file_there_is_what_was_given(path, watched):
    keys = loaded(path)
    assert (keys.current, keys.watched) == ((b"none",), watched)
