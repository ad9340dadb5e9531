"""Errors of this package. It imports no library, so that a process without grammars loads none."""

import re


class GrammarError(ValueError):
    """A grammar that cannot be served; the message is one line with the reason."""


def one_line(message: str) -> str:
    """llguidance's message without its line breaks, its backtrace and the dump of its state, bounded."""
    text = " ".join(re.split("<non-verbose/>|<backtrace>", message, maxsplit=1)[0].split())
    if text.startswith("panic: "):
        return f"it is too complex: {text.removeprefix('panic: ')}"[:400]
    return text[:400] or "nothing can follow"
