"""What llguidance is given for a Grammar, and the rewriting of forms that it does not know itself.

Used by the worker that tries grammars out and by the engine, which must both compile the very same text.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from llguidance import regex_to_lark

from kvasir_runtime.guide import lark
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.schemas import json_grammar, translate
from kvasir_runtime.wire import Grammar

JSON_CHECK: Final = "json"
"""The name under which the text of a schema's answer is checked."""


def rewritten(grammar: Grammar, specials: Mapping[str, int]) -> Grammar:
    """The same language in a form that source() knows: tags and GBNF as Lark, schemas in llguidance's words.

    specials: ids of special tokens.

    Raises GrammarError. It may take long for hostile texts, so only the worker calls it.
    """
    if grammar.kind == "structural_tag":
        made = lark.from_structural_tag(decoded(grammar.text), specials)
        check = _text(made.checks) if made.checks else ""
        return Grammar(kind="lark", text=made.text, after=grammar.after, check=check)
    if grammar.kind == "lark":
        return Grammar(kind="lark", text=lark.from_gbnf(grammar.text), after=grammar.after)
    if grammar.kind == "json_schema":
        schema = decoded(grammar.text)
        found = translate.translated(schema)
        check = _text({JSON_CHECK: schema}) if found.loose else ""
        text = grammar.text if found.schema is schema else _text(found.schema)
        return msgspec.structs.replace(grammar, text=text, check=check)
    return grammar


def source(grammar: Grammar, specials: Mapping[str, int]) -> str:
    """What llguidance compiles. Raises GrammarError where a text is not even JSON; the rest is found by compiling."""
    text = _source(grammar)
    return text if not grammar.after else _after(text, grammar.after, specials)


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return json_grammar.of_schema(decoded(grammar.text))
        case "json_object":
            return json_grammar.of_schema({"type": "object"})
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


def _text(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False)
