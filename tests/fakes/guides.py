"""The guides of docs/guides, read by the tests of what they name and by those that execute what they show.

A block of kind `sh` is what a reader types; one of kind `yaml` that begins with `# NAME.yaml` is a file of that name.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(sorted((ROOT / "docs" / "guides").glob("*.md")))
OWN: Final = Path(sys.executable).parent
"""Has our kvasir and helm."""
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"# ([\w.-]+\.yaml)\n")


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All of them, in order."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


def script(page: Path) -> str:
    """What a reader of the page types, from its beginning to its end."""
    return "\n".join(block.text for block in blocks(page) if block.kind == "sh")


def files(page: Path) -> dict[str, list[dict[str, Any]]]:
    """The manifests that a page has its reader write, by name."""
    shown = [block.text for block in blocks(page) if block.kind == "yaml"]
    named = [(found[1], text) for text in shown if (found := _FILE.match(text))]
    return {name: [document for document in yaml.safe_load_all(text) if document] for name, text in named}


def execute(typed: str, directory: Path, *, limit_s: float, **variables: str) -> str:
    """What the shell prints that a reader types this into; each command must succeed.

    variables: of its environment."""
    begin = "set -euo pipefail; trap 'echo \"failed: $BASH_COMMAND\"' ERR\n"
    done = subprocess.run(
        ["bash", "-c", begin + typed],
        cwd=directory,
        env={**os.environ, "PATH": f"{OWN}:{os.environ['PATH']}", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
