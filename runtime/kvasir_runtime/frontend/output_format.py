"""How the answers to a body are written and read: tool choice, reasoning and grammar, decided in one pass.

Called once by the preparation of a request, after the prompt was rendered. Refuses what the model's formats cannot do.
"""

from dataclasses import dataclass
from typing import Final

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.parsing import formats, tool_grammar
from kvasir_runtime.frontend.parsing.answer_parser import ParserConfig
from kvasir_runtime.frontend.parsing.formats import NONE, ParserNames
from kvasir_runtime.frontend.parsing.reasoning_parser import place_of
from kvasir_runtime.frontend.protocol.generation import ChatBody
from kvasir_runtime.frontend.protocol.sampling_fields import SamplingFields
from kvasir_runtime.frontend.protocol.tools import Tool, ToolChoice
from kvasir_runtime.frontend.structured_outputs.build import requested_grammar
from kvasir_runtime.guide.structural_tag import ANY_OBJECT, form_of
from kvasir_runtime.wire import Grammar

TAIL: Final = 8192
"""Characters of a prompt's end that are looked at; a message that is continued there has its beginning in view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """parser: how answers are read, None for plain text. grammar: what they follow; field: that requests it."""

    parser: ParserConfig | None = None
    grammar: Grammar | None = None
    field: str = ""


def of_completion(body: SamplingFields) -> OutputFormat:
    """The output of a completion is plain text. Raises Refused."""
    requested = requested_grammar(body)
    return OutputFormat() if requested is None else OutputFormat(grammar=requested.grammar, field=requested.field)


def of_chat(body: ChatBody, parsers: ParserNames, prompt: str) -> OutputFormat:
    """The output of a chat whose prompt is this text. Raises Refused.

    A required call decides alone; where the model may choose, it calls or answers in the form that was asked for.
    """
    choice = body.tool_choice or ToolChoice("auto" if body.tools else "none")
    _check_readable(body, choice, parsers.tools)
    offered = [] if parsers.tools == NONE else _offered(body, choice)
    parser = _parser(body, parsers, offered, prompt, choice)
    if parser.idle:
        return of_completion(body)
    requested = requested_grammar(body)
    strict = {tool.function.name for tool in offered if tool.function.strict}
    if offered and choice.mode == "required":
        return OutputFormat(parser=parser, grammar=tool_grammar.required(parser), field="tools")
    if requested is not None:
        grammar = tool_grammar.answer(parser, form_of(requested.grammar))
        return OutputFormat(parser=parser, grammar=grammar, field=requested.field)
    if strict:
        return OutputFormat(parser=parser, grammar=tool_grammar.strict(parser, strict), field="tools")
    return OutputFormat(parser=parser)


def _check_readable(body: ChatBody, choice: ToolChoice, call_format: str) -> None:
    if body.tools and choice.mode != "none" and not call_format:
        message = (
            "`tools` cannot be read here: the format in which this model writes calls is not known from its chat "
            "template. The server can be started with --tool-call-parser."
        )
        raise Refused(openai_errors.invalid(message, param="tools", code="unsupported_parameter"))
    if choice.mode == "required" and call_format == NONE:
        message = "`tool_choice` requests a call, and the server reads none (--tool-call-parser none)."
        raise Refused(openai_errors.invalid(message, param="tool_choice", code="unsupported_parameter"))


def _offered(body: ChatBody, choice: ToolChoice) -> list[Tool]:
    """The tools that may be called."""
    if choice.mode == "none":
        return []
    return [tool for tool in body.tools if choice.names is None or tool.function.name in choice.names]


def _parser(body: ChatBody, parsers: ParserNames, offered: list[Tool], prompt: str, choice: ToolChoice) -> ParserConfig:
    tags = formats.REASONING.get(parsers.reasoning)
    continued = body.messages[-1].content if body.continue_final_message and tags is not None else None
    tail, within = prompt[-TAIL:], False
    if continued is not None and tags is not None:
        # An answer that continues a message begins in reasoning only where that message is in it.
        opened = max(map(continued.rfind, tags.begin)) > max(map(continued.rfind, tags.end))
        tail = (tags.begin if opened else tags.end)[0]
        within = bool(continued.strip()) and place_of(continued, tags) == "start"
    return ParserConfig(
        tools=parsers.tools.removeprefix(NONE),
        reasoning=parsers.reasoning.removeprefix(NONE),
        offered={tool.function.name: tool.function.parameters or ANY_OBJECT for tool in offered},
        prompt=tail,
        single=choice.once or not body.parallel_tool_calls,
        forced=choice.mode == "required",
        shown=body.include_reasoning,
        within=within,
    )
