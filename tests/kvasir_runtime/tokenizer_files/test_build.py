"""Which of a checkpoint's files its tokenizer comes from."""

from pathlib import Path

from fakes import checkpoints, ggufs
from kvasir_runtime.tokenizer_files import build


def test_tokenizer_json_wins_and_a_gguf_file_holds_its_own(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model")
    (folder / "tokenizer.model").write_bytes(b"\x0a\x03\x0a\x01a")
    wanted = build.encoder(folder).encode("the plan").ids
    path = ggufs.write(folder, tmp_path / "model.gguf")
    assert build.encoder(path).encode("the plan").ids == wanted
    (folder / "tokenizer.json").unlink()
    assert build.encoder(folder).encode("the plan").ids != wanted
