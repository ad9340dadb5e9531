"""What llguidance is given for a Grammar, and the rewriting of forms that it does not know itself.

Used by the worker that tries grammars out and by the engine, which must both compile the very same text.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from llguidance import LLParserLimits, regex_to_lark

from kvasir_runtime.guide import lark
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.wire import Grammar

MAX_TEXT_BYTES: Final = 512 * 1024


def limits() -> LLParserLimits:
    """What one answer may cost: about 25 ms a step and 25 MB, measured with 150,000 tokens and counted repetitions.

    The library's own limits, but for the states of the lexer, of which it would permit 250,000.
    """
    return LLParserLimits(max_lexer_states=100_000, verbose_errors=False)


def rewritten(grammar: Grammar, specials: Mapping[str, int]) -> Grammar:
    """The same language in a form that source() knows: tags and GBNF as Lark. specials: ids of special tokens.

    Raises GrammarError. It may take long for hostile texts, so only the worker calls it.
    """
    if grammar.kind == "structural_tag":
        return Grammar(kind="lark", text=lark.from_structural_tag(decoded(grammar.text), specials), after=grammar.after)
    if grammar.kind == "lark":
        return Grammar(kind="lark", text=lark.from_gbnf(grammar.text), after=grammar.after)
    return grammar


def source(grammar: Grammar, specials: Mapping[str, int]) -> str:
    """What llguidance compiles. Raises GrammarError where a text is not even JSON; the rest is found by compiling."""
    text = _source(grammar)
    return text if not grammar.after else _after(text, grammar.after, specials)


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return lark.json_grammar(decoded(grammar.text))
        case "json_object":
            return lark.json_grammar({"type": "object"})
        case "regex":
            pattern = regex_to_lark(grammar.text, "d")  # digits are those of ASCII, as they are in JSON schemas
            return f"start: /{pattern}/" if pattern else 'start: ""'
        case "choice":
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in decoded(grammar.text))
            return f"start: CHOICE\nCHOICE: {choices}"  # in capitals one lexeme, so that there may be thousands
        case "lark":
            return grammar.text
        case "structural_tag":
            raise GrammarError("the tags have not been rewritten")


def _after(text: str, end: str, specials: Mapping[str, int]) -> str:
    """Any text until a certain one has been written; from then on the grammar holds."""
    grammars = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    if end in specials:
        start = f"start: BEFORE <[{specials[end]}]> @answer\nBEFORE: {lark.ANY}"
    else:
        start = f"start: before @answer\nbefore[suffix={json.dumps(end)}]: {lark.ANY}"
    return json.dumps({"grammars": [{"lark_grammar": start}, {**grammars[0], "name": "answer"}, *grammars[1:]]})


def decoded(text: str) -> Any:
    """JSON text. Raises GrammarError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError("it is not valid JSON") from error
