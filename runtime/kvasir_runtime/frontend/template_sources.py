"""The chat templates of a checkpoint by name, as texts: which files hold them, and which one the option chooses.

Most checkpoints have one; some have several, of which tool_use is for chats with tools.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf import GgufFile
from kvasir_runtime.tokenizer_files.files import check_size, read_json

DEFAULT, TOOL_USE = "default", "tool_use"
USED: Final = (DEFAULT, TOOL_USE)
_JINJA: Final = re.compile(r"\{[{%#]")
_GGUF_KEY: Final = "tokenizer.chat_template"


def of_directory(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """By name. Files of their own win over entries in tokenizer_config.json. Raises ModelError for what is no text."""
    entry = settings.get("chat_template")
    if entry is None:
        entry = _entry(folder / "chat_template.json")
    found = _named(entry, folder / "tokenizer_config.json")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _text(path)
    if (folder / "chat_template.jinja").exists():
        found[DEFAULT] = _text(folder / "chat_template.jinja")
    return found


def of_gguf(file: GgufFile) -> dict[str, str]:
    """By name, of a GGUF file."""
    keys = [key for key in file.metadata if key.startswith(f"{_GGUF_KEY}.")]
    found = {key.removeprefix(f"{_GGUF_KEY}."): file.text(key) for key in keys}
    plain = file.text(_GGUF_KEY)
    return found | ({DEFAULT: plain} if plain else {})


def chosen(sources: Mapping[str, str], option: str) -> dict[str, str]:
    """The templates to use, after the option: a file, a name among the checkpoint's, or a template as it is.

    One alone is the default whatever its name. Raises ModelError for an option that is none of the three.
    """
    if not option:
        only = next(iter(sources.values())) if len(sources) == 1 else None
        return {DEFAULT: only} if only is not None else dict(sources)
    if option in sources:
        return {DEFAULT: sources[option]}
    if _JINJA.search(option):
        return {DEFAULT: option}
    if (path := _file(option)) is not None:
        return {DEFAULT: _text(path)}
    known = f"; the checkpoint has {', '.join(sorted(sources))}" if sources else ""
    raise ModelError(f"--chat-template {option[:200]} is neither a file nor a template nor the name of one{known}")


def _file(option: str) -> Path | None:
    """The file that an option names, None where it is no such name."""
    try:
        path = Path(option).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError):  # too long for a name, or of a user who is not there
        return None


def _named(entry: Any, path: Path) -> dict[str, str]:
    """An entry is a text, or a list of names and texts."""
    if entry is None:
        return {}
    if isinstance(entry, str):
        return {DEFAULT: entry}
    items = entry if isinstance(entry, list) else [entry]
    found = {item.get("name"): item.get("template") for item in items if isinstance(item, dict)}
    if not found or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise ModelError(f"{path}: chat_template is neither a text nor a list of names and texts")
    return {str(name): str(text) for name, text in found.items()}


def _entry(path: Path) -> Any:
    return read_json(path, missing_ok=True).get("chat_template")


def _text(path: Path) -> str:
    check_size(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {' '.join(str(error).split())[:300]}") from error
