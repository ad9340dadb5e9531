"""`/tokenize` and `/detokenize`: a text or a chat in token ids, and back, by the tokenizer of the served model.

Called in a worker thread with the raw body. Field names and answers are those of vLLM; a field that has no effect here
is refused by name.
"""

from pathlib import Path
from typing import Any, Final

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from kvasir_api import openai_errors
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.chat_prompt import chat_prompt
from kvasir_runtime.frontend.chat_template import TemplateError
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile, served_name
from kvasir_runtime.frontend.protocol import generation, ignored_fields, validation
from kvasir_runtime.frontend.protocol.generation import ChatSwitches, Message
from kvasir_runtime.frontend.protocol.sampling_fields import TokenId
from kvasir_runtime.frontend.protocol.tools import Tools
from kvasir_runtime.frontend.protocol.validation import Raw, StrictModel
from kvasir_runtime.frontend.tokenizer import PromptTooLong
from kvasir_runtime.tokenizer_files.files import read_json

MAX_TOKENS: Final = 1_000_000
"""A text that must have more is not tokenized: it would keep a worker thread busy for seconds."""


class TokenizeBody(StrictModel):
    """A prompt or messages. add_special_tokens: put the tokenizer's BOS before it; by default for a prompt only."""

    model: str | None = Field(None, max_length=512)
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=16_384)
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    chat_template_kwargs: ChatSwitches = Field({})
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: Tools = Field([])

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("source", "must hold either prompt or messages")
        return self


class DetokenizeBody(StrictModel):
    """Token ids; special tokens become their text."""

    model: str | None = Field(None, max_length=512)
    tokens: list[TokenId] = Field(max_length=MAX_TOKENS)


def tokenize(raw: Raw, profile: ModelProfile) -> dict[str, Any]:
    """count, max_model_len, tokens, and token_strs if requested (else null). Raises Refused."""
    body = validation.validated(raw, TokenizeBody, ignored_fields.TOKENIZE)
    served_name(body.model, profile)
    tokenizer = profile.tokenizer
    try:
        if body.messages is not None:
            generation.check_turn(body)
            text = chat_prompt(body, profile).text(tokenizer)
            ids = tokenizer.encode(text, special=bool(body.add_special_tokens), limit=MAX_TOKENS)
        else:
            ids = tokenizer.encode(body.prompt or "", special=body.add_special_tokens is not False, limit=MAX_TOKENS)
    except TemplateError as error:
        raise Refused(openai_errors.invalid(str(error), param="messages", code="chat_template_error")) from error
    except PromptTooLong as error:
        message = f"The text has at least {error.least_tokens} tokens; at most {MAX_TOKENS} are counted."
        raise Refused(openai_errors.invalid(message, param="prompt", code="invalid_value")) from error
    return {
        "count": len(ids),
        "max_model_len": profile.max_context,
        "tokens": ids,
        "token_strs": [tokenizer.piece(token_id) for token_id in ids] if body.return_token_strs else None,
    }


def info(profile: ModelProfile, folder: Path | None) -> dict[str, Any]:
    """What is known of the tokenizer, as vLLM's `/tokenizer_info`: the settings of its files, the chat template."""
    tokenizer = profile.tokenizer
    settings = read_json(folder / "tokenizer_config.json", missing_ok=True) if folder and folder.is_dir() else {}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": profile.max_context,
        **settings,
        "vocab_size": tokenizer.vocab_size,
        "chat_template": tokenizer.template.source if tokenizer.template is not None else None,
    }


def detokenize(raw: Raw, profile: ModelProfile) -> dict[str, Any]:
    """prompt: the text of the ids. Raises Refused."""
    body = validation.validated(raw, DetokenizeBody, {})
    served_name(body.model, profile)
    prepare.check_ids([], body.tokens, profile.tokenizer.vocab_size, param="tokens")
    return {"prompt": profile.tokenizer.decode(body.tokens, special=True)}
