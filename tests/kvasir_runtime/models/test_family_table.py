"""The page of families names all of them, and is as it was generated."""

from pathlib import Path

from kvasir_runtime.models import family_table
from kvasir_runtime.models.registry import FAMILIES

PAGE = Path(__file__).parents[3] / "docs" / "families.md"


def test_every_family_has_a_row() -> None:
    lines = family_table.page().splitlines()
    for family in FAMILIES:
        assert any(line.startswith(f"| `{family.architecture}`") and family.models in line for line in lines)


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == family_table.page()
