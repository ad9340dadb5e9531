"""The demo's model is small, complete, and learnt from pages that exist."""

import json
from pathlib import Path

from kvasir_local.demo import scenario

MAX_BYTES = 8_000_000
FAQ = Path(__file__).parents[3] / "docs" / "faq.md"


def test_shipped_model_is_whole_and_small() -> None:
    files = {path.name: path.stat().st_size for path in scenario.MODEL.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} == set(files)
    assert sum(files.values()) <= MAX_BYTES


def test_shipped_template_marks_every_turn() -> None:
    about = json.loads((scenario.MODEL / "tokenizer_config.json").read_text())
    assert "<|assistant|>" in about["chat_template"]
    assert about["eos_token"] == "<|end|>"


def test_faq_has_an_answer_under_each_question() -> None:
    blocks = FAQ.read_text().split("\n## ")[1:]
    assert len(blocks) >= 40
    assert all(len(block.split("\n", 1)[1].strip()) > 20 for block in blocks)
