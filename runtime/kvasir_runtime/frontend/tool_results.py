"""Results of tools that are sent while an answer is written: their body, and the block that they become in the model's
own format.

After AsyncLM (Gim, Lee and Zhong 2024): the model goes on while its calls are made, and an interrupt inserts a result
into its context. Their models know special tokens for that; for any other model the block ends the model's turn, shows
the results as the chat template does, and opens the next turn. Used by prepare.py and by the server's streams.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from pydantic import BeforeValidator, Field

from kvasir_api import openai_errors
from kvasir_runtime.frontend.chat_prompt import ChatPrompt
from kvasir_runtime.frontend.chat_template import TemplateError
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.output_format import OutputFormat
from kvasir_runtime.frontend.parsing.formats import NONE, ParserNames
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.frontend.protocol.generation import ChatBody, text_of
from kvasir_runtime.frontend.protocol.validation import Raw, StrictModel
from kvasir_runtime.frontend.tokenizer import PromptTooLong, Tokenizer

MAX_RESULTS: Final = 128
SO_FAR: Final = "\ue000so far\ue001"
"""Stands for what the model wrote, in private characters that no template changes."""


class ToolResult(StrictModel):
    """The result of one call."""

    tool_call_id: str = Field(min_length=1, max_length=256)
    content: Annotated[str, BeforeValidator(text_of)]


class ToolResultsBody(StrictModel):
    """A body of /v1/chat/completions/ID/tool_results."""

    results: list[ToolResult] = Field(min_length=1, max_length=MAX_RESULTS)


class ToolResultBlock(NamedTuple):
    """Results as the model reads them. call_ids: the calls that they answer."""

    text: str
    token_ids: tuple[int, ...]
    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultRenderer:
    """Renders blocks for one request. max_context: of prompt and answer together, in tokens. salt: of what is
    remembered of texts."""

    prompt: ChatPrompt
    tokenizer: Tokenizer
    max_context: int
    salt: bytes = b""

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
        messages = [*self.prompt.messages, {"role": "assistant", "content": SO_FAR}, *shown]
        try:
            rendered = self.tokenizer.rendered(messages, self.prompt.variables, tools=self.prompt.tools)
            _, mark, text = rendered.rpartition(SO_FAR)
            if not mark:
                raise TemplateError("the model's chat template does not show what was said before a result")
            ids = self.tokenizer.encode(text, special=False, limit=self.max_context, salt=self.salt)
        except TemplateError as error:
            raise _refused(str(error), "chat_template_error") from error
        except PromptTooLong as error:
            raise _refused(
                f"The results have at least {error.least_tokens} tokens.", "context_length_exceeded"
            ) from error
        return ToolResultBlock(text, ids, tuple(result.tool_call_id for result in results))


def check(body: ChatBody, parsers: ParserNames, output: OutputFormat) -> None:
    """Whether results of tools may be sent while the answer is written. Raises Refused."""
    conditions = {
        "stream true": body.stream,
        "n 1": body.n == 1 and not body.use_beam_search,
        "tools, and a format in which to read calls": bool(body.tools) and parsers.tools not in {"", NONE},
        "tool_choice auto": body.tool_choice is None or body.tool_choice.mode == "auto",
        "parallel_tool_calls true": body.parallel_tool_calls,
        "no strict functions": not any(tool.function.strict for tool in body.tools),
        "no other form of the answer": output.grammar is None,
    }
    missing = next((name for name, holds in conditions.items() if not holds), None)
    if missing is not None:
        message = f"`async_tool_calls` needs {missing}."
        raise Refused(openai_errors.invalid(message, param="async_tool_calls", code="unsupported_parameter"))


def parse(raw: Raw) -> ToolResultsBody:
    """The body of a request that sends results. Raises Refused."""
    return validation.validated(raw, ToolResultsBody, {})


def _refused(message: str, code: str) -> Refused:
    return Refused(openai_errors.invalid(message, param="results", code=code))
