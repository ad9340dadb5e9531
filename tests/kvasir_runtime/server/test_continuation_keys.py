"""Keys of continuation tokens: the first line signs, and a short one is refused."""

from kvasir_runtime.server.continuation_keys import ContinuationKeys, parsed

A, B = b"a" * 20, b"b" * 20


def test_the_first_of_a_file_signs(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(A + b"\n\n" + B + b"\n")
    keys = ContinuationKeys(str(path))
    assert keys.current == ()
    keys.load()
    assert keys.current == (*parsed([A]), *parsed([B]))
    assert {len(key) for key in keys.current} == {32}


def test_a_key_that_could_be_guessed_is_refused_and_not_shown(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_bytes(A)
    keys = ContinuationKeys(str(path))
    keys.load()
    path.write_bytes(b"short")
    keys.load()
    assert keys.current == parsed([A])
    assert "fewer than 16 characters" in caplog.text
    assert "short" not in caplog.text
