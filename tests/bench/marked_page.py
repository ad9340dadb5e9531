"""The part of a page in docs/benchmarks that a measurement writes: what stands between its two marks."""

Marks = tuple[str, str]


def split(page: str, marks: Marks) -> tuple[str, str, str]:
    """What is before the marks, between them and behind them. Raises ValueError for a page without both, once each."""
    if any(page.count(mark) != 1 for mark in marks):
        raise ValueError(f"the page must hold {marks[0]!r} and {marks[1]!r} once each")
    before, rest = page.split(marks[0])
    between, behind = rest.split(marks[1])
    return before, between, behind


def replaced(page: str, marks: Marks, text: str) -> str:
    """The page with another text between the marks. Raises ValueError as split() does."""
    before, _, behind = split(page, marks)
    return f"{before}{marks[0]}\n{text}\n{marks[1]}{behind}"
