"""A pytest plugin that holds a suite that others wrote to its declared list: `-p declared`, KVASIR_DECLARED names it.

The list is a TOML file of patterns of test ids (as fnmatch reads them) with a reason each. `fails`: tests that cannot
apply; each must fail. `skips`: tests that are not run. A pattern that no test matches is an error.
"""

import os
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is declared."""
    declared = tomllib.loads(Path(os.environ["KVASIR_DECLARED"]).read_text())
    unmatched = []
    for pattern, reason in declared["fails"].items():
        unmatched += _mark(items, pattern, pytest.mark.xfail(reason=reason, strict=True))
    for pattern, reason in declared["skips"].items():
        unmatched += _mark(items, pattern, pytest.mark.skip(reason=reason))
    if unmatched and len(config.args) == len(declared["files"]["run"]):
        raise pytest.UsageError(f"no test is {', '.join(unmatched)}")


def _mark(items: Iterable[pytest.Item], pattern: str, mark: pytest.MarkDecorator) -> list[str]:
    """The pattern, where nothing matches it."""
    found = [item for item in items if fnmatchcase(item.nodeid, pattern)]
    for item in found:
        item.add_marker(mark)
    return [] if found else [pattern]
