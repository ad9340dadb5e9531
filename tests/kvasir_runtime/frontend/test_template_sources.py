"""Where chat templates come from: the checkpoint's files, its several names, or the option."""

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import checkpoints, ggufs
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend import template_sources, tokenizer

BOTH = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ (tools or []) | length }}"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path)


def with_entry(folder: Path, entry: Any) -> Path:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": entry}))
    return folder


def shown(found: tokenizer.Tokenizer, tools: list[dict[str, Any]] | None = None) -> str:
    return found.rendered([{"role": "user", "content": "hi"}], {}, tools=tools)


def test_chats_with_tools_take_the_template_for_them(folder: Path) -> None:
    found = tokenizer.load(with_entry(folder, BOTH))
    assert (shown(found), shown(found, []), shown(found, [{}, {}])) == ("D", "D", "T2")
    assert found.template_text == "D\nT{{ (tools or []) | length }}"


def test_files_of_their_own_win(folder: Path) -> None:
    with_entry(folder, BOTH)
    (folder / "chat_template.jinja").write_text("F")
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("M")
    found = tokenizer.load(folder)
    assert (shown(found), shown(found, [{}])) == ("F", "M")


@pytest.mark.parametrize(
    ("entry", "option", "want"),
    [
        (BOTH, "tool_use", ("T0", "T1")),
        (BOTH, "{{ 1 + 1 }}", ("2", "2")),
        ("D", "{% if tools %}yes{% else %}no{% endif %}", ("no", "yes")),
        ([{"name": "rag", "template": "R"}], "", ("R", "R")),
        (None, "{{ messages[0].content }}", ("hi", "hi")),
    ],
)
def test_the_option_replaces_the_checkpoints(folder: Path, entry: Any, option: str, want: tuple[str, str]) -> None:
    found = tokenizer.load(with_entry(folder, entry), option)
    assert (shown(found), shown(found, [{}])) == want


def test_the_option_names_a_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("mine {{ messages[0].content }}")
    assert shown(tokenizer.load(folder, str(path))) == "mine hi"
    for wrong in ("x" * 5000, "~nobody-here/x", "a\0b"):
        with pytest.raises(ModelError, match="is neither a file nor a template"):
            tokenizer.load(folder, wrong)
    with pytest.raises(ModelError, match=r"--chat-template nowhere\.jinja is neither .* the checkpoint has default"):
        tokenizer.load(folder, "nowhere.jinja")


@pytest.mark.parametrize("entry", [5, [], [{"name": "default"}], {"name": "default", "template": 7}])
def test_an_entry_that_is_none_is_named(folder: Path, entry: Any) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: chat_template is neither"):
        tokenizer.load(with_entry(folder, entry))


def test_a_gguf_file_has_several_too(folder: Path, tmp_path: Path) -> None:
    path = ggufs.write(folder, tmp_path / "model.gguf", tokenizer__chat_template__tool_use="T")
    found = tokenizer.load(path)
    assert (shown(found, [{}]), shown(found)[:12]) == ("T", "<|im_start|>")


def test_sources_by_name(folder: Path) -> None:
    assert set(template_sources.of_directory(folder, {"chat_template": BOTH})) == {"default", "tool_use"}
    (folder / "chat_template.json").write_text('{"chat_template": "J"}')
    assert template_sources.of_directory(folder, {}) == {"default": "J"}
