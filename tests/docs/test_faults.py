"""The page of faults names tests that exist, and leaves no fault out."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = dict(re.findall(r"^\| ([FA]\d+) \| (.*) \|$", PAGE, re.MULTILINE))
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_fault_has_its_row():
    wanted = [*(f"F{number}" for number in (*range(1, 32), *range(38, 69)))]
    assert sorted(ROWS) == sorted([*wanted, *(f"A{number}" for number in range(1, 21))])


@pytest.mark.parametrize("fault", list(ROWS))
def test_a_row_says_what_happens_and_which_test_shows_it(fault):
    what, then, shown = ROWS[fault].split(" | ")
    assert what
    assert then
    assert NAMED.findall(shown)


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED.findall(PAGE))))
def test_what_is_named_exists(path, name):
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
