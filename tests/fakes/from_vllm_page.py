"""docs/from-vllm.md, read by the tests of what it names and by those of what it says."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "from-vllm.md").read_text()


def section(title: str) -> str:
    """The text below a heading."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of its table."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def options(text: str) -> list[str]:
    """The options that it names."""
    return re.findall(r"`(--[a-z-]+)", text)
