"""Writes the table in docs/models.md from the families' declarations; `make generate` and `make check` call it."""

import sys
from pathlib import Path
from typing import Final

from kvasir_api import generate
from kvasir_runtime.models.family import Family
from kvasir_runtime.models.registry import DENSE, ENCODERS, SPARSE

PAGE: Final = "docs/models.md"
BEGIN: Final = "<!-- families: written by make generate from runtime/kvasir_runtime/models -->"
END: Final = "<!-- end of families -->"
_HEAD: Final = "| `architectures` | models, for example | |\n|---|---|---|\n"


def table() -> str:
    """A row for each family."""
    rows = [(family, "dense") for family in DENSE]
    rows += [(family, f"mixture of experts: {family.experts}") for family in SPARSE]
    rows += [(family, "encoder") for family in ENCODERS]
    return _HEAD + "".join(_row(family, kind) for family, kind in rows)


def written(page: str) -> str:
    """The page with the table between its marks. Raises ValueError for a page that has not both, once each."""
    before, behind = page.split(BEGIN)
    _, after = behind.split(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


def _row(family: Family, kind: str) -> str:
    names = ", ".join(f"`{name}`" for name in (family.architecture, family.also) if name)
    images = f"; of `{family.with_images}` the text" if family.with_images else ""
    return f"| {names}{images} | {family.models} | {kind} |\n"


if __name__ == "__main__":
    made = {PAGE: written((Path.cwd() / PAGE).read_text())}
    sys.exit(generate.update(Path.cwd(), made, check="--check" in sys.argv[1:]))
