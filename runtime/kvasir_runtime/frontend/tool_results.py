"""Results of calls that are handed into an answer while it is written: the body that brings them, and the block they
become in the model's own format.

After AsyncLM (Gim, Lee and Zhong 2024): the model goes on while its calls are made, and an interrupt brings a result
into what it reads. Their models know special tokens for that; for any other the block ends the model's turn, shows the
results as its chat template does, and opens its next turn. Used by the preparation and by the streams that go on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field

from kvasir_api import openai_errors
from kvasir_runtime.frontend import tool_choice
from kvasir_runtime.frontend.chat_template import TemplateError
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol import tools, validation
from kvasir_runtime.frontend.protocol.generation import ChatBody, text_of
from kvasir_runtime.frontend.protocol.validation import StrictModel
from kvasir_runtime.frontend.structured_outputs import build
from kvasir_runtime.frontend.tokenizer import PromptTooLong, Tokenizer

MAX_RESULTS: Final = 128
SO_FAR: Final = "\ue000so far\ue001"
"""Stands for what the model wrote, in private characters that no template changes."""


class ToolResult(StrictModel):
    """What one call gave."""

    tool_call_id: str = Field(min_length=1, max_length=256)
    content: Annotated[str, BeforeValidator(text_of)]


class ToolResultsBody(StrictModel):
    """A body of /v1/chat/completions/ID/tool_results."""

    results: list[ToolResult] = Field(min_length=1, max_length=MAX_RESULTS)


class ToolResultBlock(NamedTuple):
    """An interrupt as the model reads it. call_ids: what it answers."""

    text: str
    token_ids: tuple[int, ...]
    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultRenderer:
    """What it takes to render blocks for one request. max_context: of prompt and answer together, in tokens."""

    said: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]
    tokenizer: Tokenizer
    max_context: int

    def block(self, results: Sequence[ToolResult], names: Mapping[str, str]) -> ToolResultBlock:
        """names: of the functions, by the ids of their calls. Raises Refused; takes as long as a template may."""
        shown = [
            {
                "role": "tool",
                "tool_call_id": result.tool_call_id,
                "name": names[result.tool_call_id],
                "content": result.content,
            }
            for result in results
        ]
        messages = [*self.said, {"role": "assistant", "content": SO_FAR}, *shown]
        try:
            rendered = self.tokenizer.rendered(messages, self.variables, tools=self.tools)
            _, mark, text = rendered.rpartition(SO_FAR)
            if not mark:
                raise TemplateError("the model's chat template does not show what was said before a result")
            ids = self.tokenizer.encode(text, special=False, limit=self.max_context)
        except TemplateError as error:
            raise _refused(str(error), "chat_template_error") from error
        except PromptTooLong as error:
            raise _refused(
                f"The results have at least {error.least_tokens} tokens.", "context_length_exceeded"
            ) from error
        return ToolResultBlock(text, ids, tuple(result.tool_call_id for result in results))


def tool_result_renderer(
    body: ChatBody, tokenizer: Tokenizer, written: tuple[str, str], max_context: int
) -> ToolResultRenderer | None:
    """None where it was not asked for. written: formats of calls and thoughts. Raises Refused where it cannot be."""
    call_format, reasoning = written
    if not body.async_tool_calls:
        return None
    asks = {
        "stream true": body.stream,
        "n 1": body.n == 1 and not body.use_beam_search,
        "tools, and a format in which to read calls": bool(body.tools) and call_format not in {"", tool_choice.NONE},
        "tool_choice auto": body.tool_choice is None or body.tool_choice.mode == "auto",
        "parallel_tool_calls true": body.parallel_tool_calls,
        "no strict functions": not any(tool.function.strict for tool in body.tools),
        "no other form of the answer": build.asked_of(body) is None,
    }
    missing = next((name for name, holds in asks.items() if not holds), None)
    if missing is not None:
        message = f"`async_tool_calls` needs {missing}."
        raise Refused(openai_errors.invalid(message, param="async_tool_calls", code="unsupported_parameter"))
    return ToolResultRenderer(
        said=tool_choice.as_said(body.messages, reasoning),
        tools=tools.shown(body.tools),
        variables=tool_choice.switches(body, tokenizer, reasoning),
        tokenizer=tokenizer,
        max_context=max_context,
    )


def parse(raw: bytes) -> ToolResultsBody:
    """A body that brings results. Raises Refused."""
    return validation.validated(raw, ToolResultsBody, {})


def _refused(message: str, code: str) -> Refused:
    return Refused(openai_errors.invalid(message, param="results", code=code))
