"""A list in the words of a message, which has a bound: a service has up to a thousand replicas. Called where conditions
and events name each of several things."""

from collections.abc import Sequence
from typing import Final

MOST_NAMED: Final = 10
MOST_WORDS: Final = 32_768
"""Characters of a condition's message, by metav1.Condition."""


def listed(items: Sequence[str], separator: str = ", ") -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return f"{separator.join(items[:MOST_NAMED])}{more}"
