"""What a chat template is given for a body: messages, tools and variables. Refuses what the template cannot show.

Used for the prompt of a chat, for counting its tokens, and for showing the results of tools in a running answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.parsing.formats import HARMONY, NONE
from kvasir_runtime.frontend.protocol import tools
from kvasir_runtime.frontend.protocol.generation import ChatTurn, Message
from kvasir_runtime.frontend.protocol.tools import Tool
from kvasir_runtime.frontend.tokenizer import Tokenizer

THINKING: Final = ("enable_thinking", "thinking")
"""Names of the variable with which templates switch reasoning on and off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """continued: the prompt ends in the text of the last message. opened: it ends in the beginning of an answer."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]
    continued: bool = False
    opened: bool = True

    def text(self, tokenizer: Tokenizer) -> str:
        """The rendered template. Raises TemplateError."""
        if self.continued:
            return tokenizer.continued(self.messages, self.variables, tools=self.tools)
        return tokenizer.rendered(self.messages, self.variables, tools=self.tools, add_generation_prompt=self.opened)


def chat_prompt(body: ChatTurn, profile: ModelProfile) -> ChatPrompt:
    """For the model of this profile. A field that its template has no use for is named to profile.ignore.

    Raises Refused.
    """
    tokenizer, reasoning = profile.tokenizer, profile.parsers.reasoning
    _check_tools(body.tools, tokenizer)
    return ChatPrompt(
        messages=_messages(body.messages or (), reasoning),
        tools=tools.template_tools(body.tools),
        variables=_variables(body, profile),
        continued=body.continue_final_message,
        opened=body.add_generation_prompt is not False,
    )


def _check_tools(offered: Sequence[Tool], tokenizer: Tokenizer) -> None:
    template = tokenizer.template_for(offered)
    if offered and template is not None and "tools" not in template.switches:
        message = "`tools` is not supported by this model: its chat template has no place for them."
        raise Refused(openai_errors.invalid(message, param="tools", code="unsupported_parameter"))


def _variables(body: ChatTurn, profile: ModelProfile) -> Mapping[str, Any]:
    """Those that were sent, and reasoning_effort by the name that the template has for it.

    A template with a switch has it on for every effort but none. One without it ignores all but none, which a model
    that always reasons cannot obey.
    """
    reasoning = profile.parsers.reasoning
    effort = getattr(body, "reasoning_effort", None)
    sent = body.chat_template_kwargs
    template = profile.tokenizer.template_for(body.tools)
    if effort is None or template is None:
        return sent
    known = template.switches
    if "reasoning_effort" in known and not (effort == "none" and reasoning != HARMONY):
        return {"reasoning_effort": effort, **sent}
    switch = next((name for name in THINKING if name in known), None)
    if switch is not None:
        return {switch: effort != "none", **sent}
    if effort == "none" and reasoning.removeprefix(NONE):
        message = "`reasoning_effort` none is not supported by this model: its chat template has no switch for it."
        raise Refused(openai_errors.invalid(message, param="reasoning_effort", code="unsupported_parameter"))
    if effort != "none":
        profile.ignore("reasoning_effort")
    return sent


def _messages(messages: Sequence[Message], reasoning: str) -> list[dict[str, Any]]:
    """Messages as templates know them. developer is the newer word for system; results of tools get their names."""
    made, names = [], {}
    for message in messages:
        one = message.model_dump(exclude_none=True, exclude_unset=True)
        if one["role"] == "developer":
            one["role"] = "system"
        reasoned = one.pop("reasoning", "")
        if reasoned or "reasoning_content" in one:
            one.setdefault("reasoning_content", reasoned)
            if reasoning == HARMONY:
                one["thinking"] = one["reasoning_content"]
        for call in one.get("tool_calls", ()):
            names[call.get("id")] = call["function"]["name"]
            call.pop("index", None)
            call["type"] = "function"
            call["function"]["arguments"] = tools.template_arguments(call["function"].get("arguments", "{}"))
        if one["role"] == "tool" and "name" not in one and one.get("tool_call_id") in names:
            one["name"] = names[one["tool_call_id"]]
        made.append(one)
    return made
