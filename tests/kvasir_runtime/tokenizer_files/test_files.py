"""Which file a tokenizer is in."""

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
