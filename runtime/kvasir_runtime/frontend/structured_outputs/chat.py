"""The grammar of a chat's answer: what its fields ask for, behind the model's thoughts and beside its calls.

Called when a body is turned into a Job. Where a call is required its grammar alone decides; where the model may choose,
it may answer in the form that was asked for, or call.
"""

import json
from typing import Any

from kvasir_runtime.frontend import tool_choice
from kvasir_runtime.frontend.parsing import formats, harmony, tool_grammar
from kvasir_runtime.frontend.parsing.answer_parser import Parsing
from kvasir_runtime.frontend.parsing.formats import HARMONY
from kvasir_runtime.frontend.parsing.reasoning_parser import place_of
from kvasir_runtime.frontend.protocol.generation import Body, ChatBody
from kvasir_runtime.frontend.structured_outputs import build
from kvasir_runtime.frontend.structured_outputs.build import RequestedGrammar
from kvasir_runtime.wire import Grammar

Form = dict[str, Any]


def asked_of(body: Body, parsing: Parsing | None) -> RequestedGrammar | None:
    """The grammar of a body's answers and the field that asks for it. Raises Refused."""
    asked = build.asked_of(body)
    if not isinstance(body, ChatBody) or parsing is None:
        return asked
    called = tool_choice.grammar_of(body, parsing)
    if asked is None:
        return None if called is None else RequestedGrammar(called, "tools")
    calls = tool_choice.required_of(body, parsing)
    if calls is not None and called == calls:
        return RequestedGrammar(called, "tools")
    return RequestedGrammar(_behind_thoughts(_form(asked.grammar), calls, parsing), asked.field)


def _behind_thoughts(answer: Form, calls: Grammar | None, parsing: Parsing) -> Grammar:
    """calls: the form of one or more calls, where the model may choose them; it has thoughts of its own."""
    others = [] if calls is None else [json.loads(calls.text)["format"]]
    tags = formats.REASONING.get(parsing.reasoning)
    if HARMONY in {parsing.reasoning, parsing.tools}:
        final = [{"type": "const_string", "value": f"{harmony.CHANNEL}final{harmony.MESSAGE}"}, answer]
        begin = f"{harmony.CHANNEL}analysis{harmony.MESSAGE}"
        thoughts = _thoughts(begin, harmony.CLOSING[0])
        start = {"type": "const_string", "value": f"{harmony.START}assistant"}
        return _tagged(_or(_sequence(*final), _sequence(thoughts, start, *final), *others))
    place = "after" if tags is None else place_of(parsing.prompt, tags)
    if tags is None or place == "after":
        return _tagged(_or(answer, *others))
    spaced = _sequence(tool_grammar.BLANKS, answer)
    if place == "thinking" or tags.implied:
        return _tagged(_or(spaced, *others), after=tags.end[0])
    thinking = [_sequence(_thoughts(begin, tags.end[0]), spaced) for begin in tags.begin]
    return _tagged(_or(answer, *thinking, *others))


def _form(grammar: Grammar) -> Form:
    """A grammar as a part of a structural tag."""
    match grammar.kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(grammar.text)}
        case "json_object":
            return {"type": "json_schema", "json_schema": build.ANY_OBJECT}
        case "regex":
            return {"type": "regex", "pattern": grammar.text}
        case "choice":
            return _or(*({"type": "const_string", "value": choice} for choice in json.loads(grammar.text)))
        case "lark":
            return {"type": "grammar", "grammar": grammar.text}
        case "structural_tag":
            document: dict[str, Any] = json.loads(grammar.text)
            return {"type": "structural_tag", **document}


def _tagged(form: Form, *, after: str = "") -> Grammar:
    return Grammar(kind="structural_tag", text=json.dumps({"format": form}, ensure_ascii=False), after=after)


def _thoughts(begin: str, end: str) -> Form:
    return {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}


def _sequence(*elements: Form) -> Form:
    return {"type": "sequence", "elements": list(elements)}


def _or(*elements: Form) -> Form:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}
