"""What the library said, as a client reads it."""

import pytest

from kvasir_runtime.guide.errors import one_line


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("at 1(8):\n  invalid regex", "at 1(8): invalid regex"),
        ("no such key\n<non-verbose/>\n{state}", "no such key"),
        ("panic: too many symbols\n<backtrace>\n 0: <unknown>", "it is too complex: too many symbols"),
        ("<non-verbose/>{state}", "nothing can follow"),
        ("x" * 1000, "x" * 400),
    ],
)
def test_one_line(said, read):
    assert one_line(said) == read
