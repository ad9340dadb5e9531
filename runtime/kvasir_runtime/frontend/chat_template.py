"""Renders chat messages into the prompt that the model was trained on, in Jinja's sandbox.

The template comes with the model, never from a client. Called in a worker thread for each chat request; output and
time are bounded, because a template is a program. It knows nothing of HTTP or token ids.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDERED_CHARACTERS: Final = 64_000_000
MAX_RENDER_S: Final = 10.0
RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
_PROBE: Final = "kvasir"
"""A message's text that no template writes by itself."""


class TemplateError(ValueError):
    """The template refused the messages, or is broken; the message is fit for a client."""


class GenerationTag(Extension):
    """The tag `{% generation %}` marks the assistant's words for training; serving just renders them."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads it from the class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. special_tokens: bos_token, eos_token and so on, as the tokenizer's files name them.

    switches: the names that it looks at.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.switches = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template is not valid: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt, ending where the assistant's answer begins, or after the last message.

        variables: further switches that the template knows, such as enable_thinking. Raises TemplateError when the
        template raises (roles that must alternate), runs too long, or writes too much.
        """
        context = {
            **self._special_tokens,
            **(variables or {}),
            "messages": list(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        deadline = time.monotonic() + MAX_RENDER_S
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(context):
                parts.append(part)
                size += len(part)
                if size > MAX_RENDERED_CHARACTERS or time.monotonic() > deadline:
                    raise TemplateError("the model's chat template wrote too much or ran too long")
        except TemplateError:
            raise
        except Exception as error:  # a template can raise anything; it becomes the client's answer
            raise TemplateError(f"the model's chat template refused the messages: {error}") from error
        return "".join(parts)

    def behind_answer(self) -> str:
        """What the template writes behind the text of an assistant's last message, blanks before it left out; "" where
        it shows no such message.
        """
        messages = [{"role": "user", "content": _PROBE}, {"role": "assistant", "content": _PROBE}]
        try:
            rendered = self.render(messages, add_generation_prompt=False)
        except TemplateError:
            return ""
        return rendered.rpartition(_PROBE)[2].lstrip() if rendered.count(_PROBE) > 1 else ""


def opened(rendered: str, last: str) -> str:
    """A rendered prompt, cut after the text of its last message, so that the answer continues it.

    Templates strip blanks or do not; either is found. Raises TemplateError where the text is not in the prompt.
    """
    bare = last.strip()
    place = rendered.rfind(bare)
    if not bare or place < 0:
        raise TemplateError("the model's chat template does not show the last message, so it cannot be continued")
    kept = last.lstrip()
    return rendered[: place + len(kept if rendered.startswith(kept, place) else bare)]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], autoescape=False
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: Jinja's own escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - templates print the local date, as everywhere else
