"""Translates a schema for llguidance: as it is where that compiles, else rewritten, with the fewest keywords left to a
check of the answers.

Used by grammars.py and lark.py in the worker; the engine compiles what it made.
"""

import json
from functools import cache
from typing import Any, Final, NamedTuple

from llguidance import LLMatcher, LLTokenizer

from kvasir_runtime.guide import finite
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.limits import parser_limits
from kvasir_runtime.guide.schemas import json_grammar
from kvasir_runtime.guide.schemas.rewrite import Rewriter
from kvasir_runtime.guide.schemas.unions import TooLarge

LEAVABLE: Final = {
    "not disjoint": ("patternProperties", "propertyNames"),
    "patternPropert": ("patternProperties", "propertyNames"),
    "maxProperties only": ("minProperties", "maxProperties"),
    "float range": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "too many digits": ("multipleOf",),
    "too large": ("not", "oneOf", "if", "contains", "unevaluatedItems", "unevaluatedProperties"),
}
"""What llguidance's message has in it where it cannot compile a schema, and the keywords to leave to the check."""
ENDLESS: Final = "it is unsatisfiable: whatever fits it would have no end"


class Translated(NamedTuple):
    """schema: as it was where llguidance compiles it. loose: keywords that it does not enforce, to be checked."""

    schema: Any
    loose: frozenset[str] = frozenset()


def translated(schema: Any, *, counts_names: bool = True) -> Translated:
    """A schema in the words that llguidance compiles.

    counts_names: minProperties is checked, as llguidance counts a name that is written twice as two.

    Raises GrammarError where a schema cannot be compiled, or no text of it would end.
    """
    if not finite.has_finite_text(schema):
        raise GrammarError(ENDLESS)
    if not (counts_names and "minProperties" in json.dumps(schema)) and not _refusal(schema):
        return Translated(schema)
    relaxed: set[str] = set()
    while True:
        rewriter = Rewriter(schema, relaxed)
        made, refusal = _rewritten(schema, rewriter)
        more = {keyword for sign, keywords in LEAVABLE.items() if sign in refusal for keyword in keywords} - relaxed
        if not more:
            break
        relaxed |= more
    if refusal:
        raise GrammarError(refusal)
    if not finite.has_finite_text(made):
        raise GrammarError(ENDLESS)
    return Translated(made, frozenset(rewriter.loose if counts_names else rewriter.loose - {"minProperties"}))


def _rewritten(schema: Any, rewriter: Rewriter) -> tuple[Any, str]:
    """The document, and why it is not compiled."""
    try:
        made = rewriter.document()
    except TooLarge as error:
        return False, str(error)
    if isinstance(schema, dict) and isinstance(made, dict) and "x-guidance" in schema:
        made["x-guidance"] = schema["x-guidance"]
    return made, _refusal(made)


@cache
def byte_tokenizer() -> LLTokenizer:
    """A vocabulary of bytes, for grammars whose texts are not a model's."""
    return LLTokenizer("byte")


def byte_matcher(text: str) -> LLMatcher:
    """A compiled grammar at its beginning, for bytes. Raises GrammarError."""
    matcher = LLMatcher(byte_tokenizer(), text, log_level=0, limits=parser_limits())
    if matcher.is_error():
        raise GrammarError(matcher.get_error())
    return matcher


def _refusal(schema: Any) -> str:
    """Why llguidance does not compile a schema, "" where it does."""
    try:
        byte_matcher(json_grammar.of_schema(schema))
    except GrammarError as error:
        return str(error)
    return ""
