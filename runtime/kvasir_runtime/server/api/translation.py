"""From another API's body to the chat of OpenAI's that it means, and errors back into that API's names of fields.

Called by the protocol and the routes of each API that is not OpenAI's. It knows none of their documents.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationInfo

from kvasir_api import openai_errors
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.chat_prompt import chat_prompt
from kvasir_runtime.frontend.chat_template import TemplateError
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.model_profile import ModelProfile, served_name
from kvasir_runtime.frontend.protocol import generation
from kvasir_runtime.frontend.protocol.generation import ChatBody
from kvasir_runtime.frontend.protocol.validation import ignore
from kvasir_runtime.frontend.tokenizer import PromptTooLong
from kvasir_runtime.server.api.openai.tokenize import MAX_TOKENS


def chat_body(document: dict[str, Any], names: Mapping[str, str]) -> ChatBody:
    """A translated body as a chat's body. names: a chat's fields, and their names in the API. Raises Refused."""
    try:
        return generation.parse_chat(document)
    except Refused as refused:
        raise with_own_names(refused, names) from refused


def tools_of_type(served: str, value: Any, info: ValidationInfo) -> Any:
    """The tools of a list that are of this type or of none; the others are left out and named. It is called before the
    tools are validated.
    """
    if not isinstance(value, list):
        return value
    kept = []
    for place, tool in enumerate(value):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != served:
            ignore(info, f"tools[{place}]")
        else:
            kept.append(tool)
    value[:] = kept  # of the document itself: unknown fields are looked for in it by places among what is left
    return value


def generation_request(
    body: ChatBody, profile: ModelProfile, prefix: str, names: Mapping[str, str], *, fit: bool = False
) -> GenerationRequest:
    """The job of a translated body, with errors in the API's own names. fit: as prepare.job_of. Raises Refused."""
    try:
        generation_request = prepare.from_body(body, _named(profile, names), prefix, fit=fit)
        return replace(
            generation_request,
            grammar_field=names.get(generation_request.grammar_field, generation_request.grammar_field),
        )
    except Refused as refused:
        raise with_own_names(refused, names) from refused


def prompt_tokens(body: ChatBody, profile: ModelProfile, names: Mapping[str, str]) -> int:
    """Tokens of the prompt that a chat would send. Raises Refused."""
    param = names.get("messages", "messages")
    served_name(body.model, profile)
    try:
        text = chat_prompt(body, _named(profile, names)).text(profile.tokenizer)
        return len(profile.tokenizer.encode(text, special=False, limit=MAX_TOKENS))
    except TemplateError as error:
        raise Refused(openai_errors.invalid(str(error), param=param, code="chat_template_error")) from error
    except PromptTooLong as error:
        message = f"The text has at least {error.least_tokens} tokens; at most {MAX_TOKENS} are counted."
        raise Refused(openai_errors.invalid(message, param=param, code="invalid_value")) from error


def _named(profile: ModelProfile, names: Mapping[str, str]) -> ModelProfile:
    """The profile, for which fields without effect have the API's own names."""
    return replace(profile, ignore=lambda name: profile.ignore(names.get(name, name)))


def with_own_names(refused: Refused, names: Mapping[str, str]) -> Refused:
    """An error about a chat's field as one about the API's own field."""
    error = refused.error
    for ours, theirs in names.items():
        if error.param is not None and error.param.startswith(ours):
            param = theirs + error.param.removeprefix(ours)
            return Refused(replace(error, param=param, message=error.message.replace(f"`{ours}", f"`{theirs}")))
    return refused


def thinking_fields(level: bool | str | None) -> dict[str, Any]:
    """The chat's fields that switch reasoning on (true), off (false), or to a level; none for null.

    Off is an effort, which is refused for models that always reason; on is a variable of the chat template.
    """
    if level is True:
        return {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
    return {} if level is None else {"reasoning_effort": level or "none"}
