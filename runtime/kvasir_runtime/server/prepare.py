"""From a request's bytes to a Job: what to send to the engine and what its answer shall look like.

Called in a worker thread for each request, since templates and tokenizers take time. It decides everything that can be
decided before the engine is asked, and refuses with Refused; it knows nothing of sockets or of the event loop.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvasir_api import hashes, openai_errors
from kvasir_runtime.server import bodies
from kvasir_runtime.server.bodies import Body, ChatBody, CompletionBody, Message
from kvasir_runtime.server.refusals import Refused
from kvasir_runtime.server.templates import TemplateError
from kvasir_runtime.server.tokenizer import PromptTooLong, Tokenizer
from kvasir_runtime.wire import Request, Sampling

DEFAULT_COMPLETION_TOKENS = 16
SEED_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What requests are checked against: the names of the model, its tokenizer, and its longest context in tokens."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    max_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One accepted HTTP request. requests: one per choice of the answer, in the order of their index."""

    answer_id: str
    model: str
    chat: bool
    stream: bool
    include_usage: bool
    requests: tuple[Request, ...]
    num_prompts: int
    prompt_tokens: int
    stops: tuple[str, ...]
    include_stop: bool


def job(raw: bytes, served: Served, *, chat: bool) -> Job:
    """Parse, check, template and tokenize. Raises Refused."""
    body = bodies.chat(raw) if chat else bodies.completion(raw)
    if body.model not in served.names:
        raise Refused(openai_errors.model_not_found(body.model))
    prompts, texts = _chat_prompt(body, served) if isinstance(body, ChatBody) else _text_prompts(body, served)
    limits = [_max_tokens(body, len(prompt), served.max_context) for prompt in prompts]
    check_ids(prompts, body.stop_token_ids, served.tokenizer.vocab_size)
    answer_id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
    seed = secrets.randbits(63) if body.seed is None else body.seed & SEED_MASK
    salt = hashlib.sha256(body.cache_salt.encode()).digest() if body.cache_salt else b""
    routes = [hashes.route_hashes(text, model=body.model, salt=salt) for text in texts]
    requests = [
        Request(
            request_id=f"{answer_id}-{number * body.n + choice}",
            prompt=prompt,
            sampling=_sampling(body, limits[number], (seed + choice) & SEED_MASK),
            salt=salt,
            route_hashes=routes[number],
        )
        for number, prompt in enumerate(prompts)
        for choice in range(body.n)
    ]
    return Job(
        answer_id=answer_id,
        model=body.model,
        chat=chat,
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        requests=tuple(requests),
        num_prompts=len(prompts),
        prompt_tokens=sum(map(len, prompts)),
        stops=tuple(body.stop),
        include_stop=body.include_stop_str_in_output,
    )


def _sampling(body: Body, max_tokens: int, seed: int) -> Sampling:
    """top_p 0 leaves only the likeliest token, which is top_k 1; top_k -1 is another way to say off."""
    return Sampling(
        temperature=body.temperature,
        top_k=1 if body.top_p == 0 else max(0, body.top_k),
        top_p=1.0 if body.top_p == 0 else body.top_p,
        min_p=body.min_p,
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop_token_ids=tuple(body.stop_token_ids),
    )


def _chat_prompt(body: ChatBody, served: Served) -> tuple[list[tuple[int, ...]], list[str]]:
    try:
        prompt = served.tokenizer.chat(as_said(body.messages), body.chat_template_kwargs, served.max_context)
    except TemplateError as error:
        raise Refused(openai_errors.invalid(str(error), param="messages", code="chat_template_error")) from error
    except PromptTooLong as error:
        raise _too_long(body, error, served.max_context) from error
    source = body.model_dump(include={"messages", "chat_template_kwargs"}, exclude_none=True)
    return [prompt], [hashes.request_text(source)]


def as_said(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates know them: developer is the newer word for system."""
    said = [message.model_dump(exclude_none=True) for message in messages]
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in said]


def _text_prompts(body: CompletionBody, served: Served) -> tuple[list[tuple[int, ...]], list[str]]:
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            try:
                ids = served.tokenizer.encode(prompt, special=body.add_special_tokens, limit=served.max_context)
            except PromptTooLong as error:
                raise _too_long(body, error, served.max_context) from error
        else:
            ids = tuple(prompt)
        if not ids:
            raise Refused(openai_errors.invalid("The prompt is empty.", param="prompt", code="invalid_value"))
        prompts.append(ids)
    return prompts, [hashes.request_text({"prompt": prompt}) for prompt in body.prompt]


def _too_long(body: Body, error: PromptTooLong, limit: int) -> Refused:
    return Refused(
        openai_errors.context_length(
            limit=limit, prompt_tokens=error.least_tokens, max_tokens=body.max_tokens or 0, at_least=True
        )
    )


def _max_tokens(body: Body, prompt_tokens: int, limit: int) -> int:
    """Tokens this answer may have: as asked for, else OpenAI's 16 for a completion and all that fits for a chat."""
    asked = body.max_tokens
    if isinstance(body, ChatBody):
        asked = asked or body.max_completion_tokens
    room = limit - prompt_tokens
    if room < 1 or (asked or 0) > room:
        raise Refused(
            openai_errors.context_length(
                limit=limit, prompt_tokens=prompt_tokens, max_tokens=0 if asked is None else asked
            )
        )
    if asked is None:
        asked = room if isinstance(body, ChatBody) else min(room, DEFAULT_COMPLETION_TOKENS)
    if body.min_tokens > asked:
        message = f"min_tokens {body.min_tokens} is more than the {asked} tokens that the answer may have."
        raise Refused(openai_errors.invalid(message, param="min_tokens", code="invalid_value"))
    return asked


def check_ids(
    prompts: Sequence[Sequence[int]], others: Sequence[int], vocab_size: int, *, param: str = "stop_token_ids"
) -> None:
    """An id beyond the embedding would stop the engine for everybody, whoever made it. param: the field of others."""
    for name, ids in [("prompt", prompt) for prompt in prompts] + [(param, others)]:
        if ids and max(ids) >= vocab_size:
            message = f"Token id {max(ids)} is out of range: the model's vocabulary has {vocab_size} ids."
            raise Refused(openai_errors.invalid(message, param=name, code="invalid_value"))
