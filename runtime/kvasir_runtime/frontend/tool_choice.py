"""What a chat's fields about tools and thoughts mean for its prompt, for reading its answers, and for what it may say.

Called by the preparation of a request. Refuses what the model's template or format cannot do; knows no engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvasir_api import openai_errors
from kvasir_runtime.frontend.chat_template import ChatTemplate
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.parsing import formats, tool_grammar
from kvasir_runtime.frontend.parsing.answer_parser import Parsing
from kvasir_runtime.frontend.parsing.formats import HARMONY
from kvasir_runtime.frontend.parsing.reasoning_parser import place_of
from kvasir_runtime.frontend.protocol import tools
from kvasir_runtime.frontend.protocol.generation import ChatBody, ChatTurn, Message
from kvasir_runtime.frontend.protocol.tools import Tool, ToolChoice
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.wire import Grammar

TAIL: Final = 8192
"""Characters of a prompt's end that are looked at; a message that is continued there has its beginning in view."""
THINKING: Final = ("enable_thinking", "thinking")
"""Names of the switch that templates have for thoughts."""
NONE: Final = "none"
AUTO: Final = "auto"


def formats_of(template: ChatTemplate | None, tools: str, reasoning: str) -> tuple[str, str]:
    """Names of the formats of calls and thoughts, "" where auto finds none. tools, reasoning: as the options say."""
    source = template.source if template is not None else ""
    return (
        formats.tools_of(source) if tools == AUTO else tools,
        formats.reasoning_of(source) if reasoning == AUTO else reasoning,
    )


def check_shown(tools: Sequence[Tool], tokenizer: Tokenizer) -> None:
    """Whether the template has a place for tools. Raises Refused."""
    if tools and tokenizer.template is not None and "tools" not in tokenizer.template.switches:
        message = "`tools` is not supported by this model: its chat template has no place for them."
        raise Refused(openai_errors.invalid(message, param="tools", code="unsupported_parameter"))


def switches(body: ChatTurn, tokenizer: Tokenizer, reasoning: str = "") -> Mapping[str, Any]:
    """Variables of the template: those that were sent, and reasoning_effort by the name it has there. Raises Refused.

    A template that only knows on and off has it on for every effort but none.
    """
    effort = getattr(body, "reasoning_effort", None)
    sent = body.chat_template_kwargs
    if effort is None or tokenizer.template is None:
        return sent
    known = tokenizer.template.switches
    if "reasoning_effort" in known and not (effort == "none" and reasoning != HARMONY):
        return {"reasoning_effort": effort, **sent}
    switch = next((name for name in THINKING if name in known), None)
    if switch is not None:
        return {switch: effort != "none", **sent}
    if effort == "none" and not reasoning.removeprefix(NONE):
        return sent
    message = f"`reasoning_effort` {effort} is not supported by this model: its chat template has no switch for it."
    raise Refused(openai_errors.invalid(message, param="reasoning_effort", code="unsupported_parameter"))


def as_said(messages: Sequence[Message], reasoning: str = "") -> list[dict[str, Any]]:
    """Messages as templates know them. developer is the newer word for system; results of calls get their names."""
    said, names = [], {}
    for message in messages:
        one = message.model_dump(exclude_none=True, exclude_unset=True)
        if one["role"] == "developer":
            one["role"] = "system"
        thoughts = one.pop("reasoning", "")
        if thoughts or "reasoning_content" in one:
            one.setdefault("reasoning_content", thoughts)
            if reasoning == HARMONY:
                one["thinking"] = one["reasoning_content"]
        for call in one.get("tool_calls", ()):
            names[call.get("id")] = call["function"]["name"]
            call.pop("index", None)
            call["type"] = "function"
            call["function"]["arguments"] = tools.spoken(call["function"].get("arguments", "{}"))
        if one["role"] == "tool" and "name" not in one and one.get("tool_call_id") in names:
            one["name"] = names[one["tool_call_id"]]
        said.append(one)
    return said


def parsing_of(body: ChatBody, written: tuple[str, str], prompt: str) -> Parsing | None:
    """What to look for in the answers; None for nothing. written: formats_of(). Raises Refused."""
    tools, reasoning = written
    choice = _choice(body)
    if body.tools and choice.mode != "none" and not tools:
        message = (
            "`tools` cannot be read here: the format in which this model writes calls is not known from its chat "
            "template. The server may be told with --tool-call-parser."
        )
        raise Refused(openai_errors.invalid(message, param="tools", code="unsupported_parameter"))
    if choice.mode == "required" and tools == NONE:
        message = "`tool_choice` asks for a call, and the server was told to read none (--tool-call-parser none)."
        raise Refused(openai_errors.invalid(message, param="tool_choice", code="unsupported_parameter"))
    parsing = Parsing(
        tools=tools.removeprefix(NONE),
        reasoning=reasoning.removeprefix(NONE),
        offered={}
        if tools == NONE
        else {tool.function.name: tool.function.parameters or {} for tool in _offered(body)},
        prompt=_tail(body, prompt, reasoning),
        single=not body.parallel_tool_calls,
        shown=body.include_reasoning,
        within=_within(body, reasoning),
    )
    return None if parsing.idle else parsing


def required_of(body: ChatBody, parsing: Parsing) -> Grammar | None:
    """The grammar of one or more calls and nothing else, where functions may be called."""
    functions = [tool.function for tool in _offered(body)]
    if not parsing.offered or not functions:
        return None
    return tool_grammar.required(parsing, [_asked(function) for function in functions])


def grammar_of(body: ChatBody, parsing: Parsing | None) -> Grammar | None:
    """The grammar that makes calls certain where they are required, and their arguments fit where they are strict."""
    choice = _choice(body)
    if parsing is None or not parsing.offered:
        return None
    functions = [tool.function for tool in _offered(body)]
    asked = [_asked(function) for function in functions]
    if choice.mode == "required":
        return tool_grammar.required(parsing, asked)
    if any(function.strict for function in functions):
        return tool_grammar.strict(parsing, asked)
    return None


def _asked(function: tools.Function) -> tool_grammar.CallableFunction:
    return tool_grammar.CallableFunction(
        function.name, function.parameters or {"type": "object"}, bool(function.strict)
    )


def _choice(body: ChatBody) -> ToolChoice:
    return body.tool_choice or ToolChoice("auto" if body.tools else "none")


def _offered(body: ChatBody) -> list[Tool]:
    """Those that may be called."""
    choice = _choice(body)
    if choice.mode == "none":
        return []
    return [tool for tool in body.tools if choice.names is None or tool.function.name in choice.names]


def _within(body: ChatBody, reasoning: str) -> bool:
    """Whether the answer goes on with a message that has said, or thought, something."""
    tags = formats.REASONING.get(reasoning)
    if not body.continue_final_message or tags is None:
        return False
    text = body.messages[-1].content
    return bool(text.strip()) and place_of(text, tags) == "start"


def _tail(body: ChatBody, prompt: str, reasoning: str) -> str:
    """Where the answer begins. One that goes on with a message is in thoughts only where that message is."""
    tags = formats.REASONING.get(reasoning)
    if not body.continue_final_message or tags is None:
        return prompt[-TAIL:]
    content = body.messages[-1].content
    opened = max(content.rfind(tag) for tag in tags.begin) > max(content.rfind(tag) for tag in tags.end)
    return (tags.begin if opened else tags.end)[0]
