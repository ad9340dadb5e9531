"""Which form of answer a request's fields ask for. Called when a body is turned into a Job.

It only reads fields: whether the grammar can be compiled is asked elsewhere, and the engine alone applies it.
"""

from typing import Any

from kvasir_runtime.wire import Grammar


def grammar_of(body: Any) -> Grammar | None:
    """The grammar that response_format, guided_* or structured_outputs of a body ask for; None where nothing does."""
    return None
