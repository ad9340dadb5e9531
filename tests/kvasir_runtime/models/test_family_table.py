"""The table of families names all of them, and stands in its page as it was generated."""

from pathlib import Path

import pytest

from kvasir_runtime.models import family_table
from kvasir_runtime.models.registry import FAMILIES, SPARSE

PAGE = Path(__file__).parents[3] / family_table.PAGE


def test_every_family_has_a_row() -> None:
    lines = family_table.table().splitlines()
    assert len(lines) == len(FAMILIES) + 2
    for family in FAMILIES:
        [line] = [line for line in lines if line.startswith(f"| `{family.architecture}`")]
        assert family.models in line
        assert family.experts in line
        assert all(f"`{name}`" in line for name in (family.also, family.with_images) if name)


def test_mixtures_of_experts_and_no_others_have_a_word_on_their_experts() -> None:
    assert [family for family in FAMILIES if family.experts] == [*SPARSE]


def test_the_table_in_the_page_is_fresh() -> None:
    assert PAGE.read_text() == family_table.written(PAGE.read_text())


def test_what_stands_around_the_table_stays() -> None:
    stale = f"# Models\n\n{family_table.BEGIN}\n| old |\n{family_table.END}\n\n## GGUF\n"
    page = family_table.written(stale)
    assert page == f"# Models\n\n{family_table.BEGIN}\n{family_table.table()}{family_table.END}\n\n## GGUF\n"
    assert family_table.written(page) == page


@pytest.mark.parametrize("page", ["", family_table.BEGIN, f"{family_table.END}", f"{family_table.BEGIN}{{}}" * 2])
def test_a_page_without_its_marks_is_not_written(page: str) -> None:
    with pytest.raises(ValueError, match="unpack"):
        family_table.written(page)
