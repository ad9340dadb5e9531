"""When the vocabulary of grammars is loaded."""

from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.checkpoints import Shape
from kvasir_runtime.runner.startup import grammars
from kvasir_runtime.wire import EngineFacts

FACTS = EngineFacts(
    device="cpu",
    kernels="none",
    dtype="float32",
    block_size=16,
    num_blocks=1,
    max_model_len=16,
    max_sequences=1,
    max_batch_tokens=16,
    weights_bytes=0,
    kv_bytes_per_token=1,
    vocab_size=Shape().vocab_size,
)


@pytest.mark.parametrize(("at_once", "size"), [(True, Shape().vocab_size), (False, 0)])
def test_nodes_load_it_before_they_serve_and_others_at_the_first_grammar(
    tmp_path: Path, at_once: bool, size: int
) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape())
    assert grammars.compiler(folder, FACTS, at_once=at_once).vocab_size == size


def test_one_that_cannot_be_used_ends_no_start(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape())
    (folder / "tokenizer.json").write_text("{")
    assert grammars.compiler(folder, FACTS, at_once=True).vocab_size == 0
