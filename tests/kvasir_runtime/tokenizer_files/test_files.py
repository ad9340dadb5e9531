"""Which file a tokenizer is in, and files of JSON beside it."""

from pathlib import Path

import pytest

from kvasir_runtime.errors import ModelError
from kvasir_runtime.tokenizer_files import files


def test_the_first_in_order_is_found(tmp_path: Path) -> None:
    for name in reversed(files.FILES):
        (tmp_path / name).touch()
        assert files.find(tmp_path) == tmp_path / name


def test_a_checkpoint_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer: expected one of tokenizer\.json, tekken\.json"):
        files.find(tmp_path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a file of at most"):
        files.check_size(tmp_path)
    with pytest.raises(ModelError, match="No such file"):
        files.check_size(tmp_path / "absent")


@pytest.mark.parametrize(("text", "want"), [('{"a": Infinity}', {"a": float("inf")}), ("{}", {})])
def test_numbers_that_only_python_writes_are_read(tmp_path: Path, text: str, want: dict[str, float]) -> None:
    (tmp_path / "a.json").write_text(text)
    assert files.read_json(tmp_path / "a.json") == want
    assert files.read_json(tmp_path / "absent.json", missing_ok=True) == {}


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "\udc80"])
def test_what_is_no_object_of_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ModelError, match=r"a\.json is not "):
        files.read_json(tmp_path / "a.json")
