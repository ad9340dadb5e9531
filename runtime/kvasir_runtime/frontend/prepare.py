"""From a request's bytes to a Job: what to send to the engine and what its answer shall look like.

Called in a worker thread for each request, since templates and tokenizers take time. It decides everything that can be
decided before the engine is asked, and refuses with Refused; it knows nothing of sockets or of the event loop.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvasir_api import hashes, http_apis, openai_errors
from kvasir_runtime.frontend import beam_search, tool_choice
from kvasir_runtime.frontend.chat_template import TemplateError
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_config import applied
from kvasir_runtime.frontend.parsing.answer_parser import Parsing
from kvasir_runtime.frontend.pooling.capabilities import Capabilities
from kvasir_runtime.frontend.protocol import generation, tools
from kvasir_runtime.frontend.protocol.generation import Body, ChatBody, ChatTurn, CompletionBody
from kvasir_runtime.frontend.structured_outputs import build
from kvasir_runtime.frontend.structured_outputs.chat import asked_of
from kvasir_runtime.frontend.tokenizer import PromptTooLong, Tokenizer
from kvasir_runtime.frontend.tool_results import ToolResultRenderer, tool_result_renderer
from kvasir_runtime.wire import EngineRequest, Ready, SamplingConfig

DEFAULT_COMPLETION_TOKENS = 16
SEED_MASK = (1 << 63) - 1
MAX_PROMPT_TOKENS = 1_000_000
"""A text that must have more is not tokenized, even where only its end is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What requests are checked against: the names of the model, its tokenizer, and its longest context in tokens.

    ready: what the engine said of itself; None where nobody asked it. written: the formats of calls and thoughts.
    instance: with it ids of chats begin, so that a gateway finds the process that writes one.
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    max_context: int
    abilities: Capabilities = field(default_factory=Capabilities)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ready: Ready | None = None
    written: tuple[str, str] = ("", "")
    instance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One accepted HTTP request. requests: one per choice that is drawn, in the order of their index.

    num_choices: of each prompt that are shown, the best of those drawn. logprobs, prompt_logprobs: how many of the
    likeliest tokens are shown at each place, -1 for no logprobs at all. echoes: texts of the prompts, where they are
    repeated before the answers. continues: the answer goes on with the text of its prompt. only_prompt: the engine must
    draw a token, but none was asked for. special: special tokens are shown. token_ids: they are shown too. parsing:
    what to look for in the answers of a chat. guided_by: the field that asks for their grammar. interrupts: results
    of calls may be handed in.
    """

    answer_id: str
    model: str
    chat: bool
    stream: bool
    include_usage: bool
    requests: tuple[EngineRequest, ...]
    num_prompts: int
    prompt_tokens: int
    stops: tuple[str, ...]
    include_stop: bool
    num_choices: int = 1
    logprobs: int = -1
    prompt_logprobs: int = -1
    echoes: tuple[str, ...] = ()
    continues: bool = False
    only_prompt: bool = False
    special: bool = False
    token_ids: bool = False
    as_token_ids: bool = False
    parsing: Parsing | None = None
    interrupts: ToolResultRenderer | None = None
    guided_by: str = ""

    @property
    def num_drawn(self) -> int:
        """Choices drawn for each prompt."""
        return len(self.requests) // self.num_prompts


def from_bytes(raw: bytes, served: ModelProfile, *, chat: bool) -> GenerationRequest:
    """Parse, check, template and tokenize. Raises Refused."""
    return (
        from_body(generation.parse_chat(raw), served, http_apis.CHAT_PREFIX)
        if chat
        else from_body(generation.parse_completion(raw), served, "cmpl-")
    )


def from_body(
    body: ChatBody | CompletionBody, served: ModelProfile, prefix: str, *, fit: bool = False
) -> GenerationRequest:
    """The job of a body that was checked. Raises Refused.

    prefix: how the answer's id begins. fit: an answer that asks for more tokens than fit has those that do.
    """
    chat = isinstance(body, ChatBody)
    _check_generates(body.model, served)
    body = applied(body, served.defaults)
    parsing: Parsing | None = None
    interrupts: ToolResultRenderer | None = None
    if isinstance(body, ChatBody):
        prompts, texts, parsing = _chat_prompt(body, served)
        interrupts = tool_result_renderer(body, served.tokenizer, served.written, served.max_context)
    else:
        prompts, texts = _text_prompts(body, served)
    limits = [_max_tokens(body, len(prompt), served, fit=fit) for prompt in prompts]
    _check_ids(prompts, body, served.tokenizer.vocab_size)
    drawn = body.n if body.use_beam_search else max(body.n, getattr(body, "best_of", None) or 1)
    sampling = _sampling(body, served.tokenizer, drawn)
    asked = asked_of(body, parsing)
    if asked is not None:
        build.check_total(asked, len(prompts) * drawn)
        sampling = msgspec.structs.replace(sampling, grammar=asked.grammar)
    answer_id = prefix + served.instance + secrets.token_hex(12)
    samplings = [msgspec.structs.replace(sampling, max_tokens=max(1, limit)) for limit in limits]
    requests = _requests(body, answer_id, list(zip(prompts, texts, samplings, strict=True)), drawn)
    return GenerationRequest(
        answer_id=prefix + body.request_id if body.request_id else answer_id,
        model=body.model,
        chat=chat,
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        requests=tuple(requests),
        num_prompts=len(prompts),
        prompt_tokens=sum(map(len, prompts)),
        stops=tuple(body.stop),
        include_stop=body.include_stop_str_in_output,
        num_choices=body.n,
        logprobs=_logprobs(body),
        prompt_logprobs=-1 if body.prompt_logprobs is None else body.prompt_logprobs,
        echoes=_echoes(body, prompts, served.tokenizer),
        continues=isinstance(body, CompletionBody) or body.continue_final_message,
        only_prompt=body.max_tokens == 0,
        special=not body.skip_special_tokens,
        token_ids=body.return_token_ids,
        as_token_ids=body.return_tokens_as_token_ids,
        parsing=parsing,
        interrupts=interrupts,
        guided_by="" if asked is None else asked.field,
    )


def _requests(
    body: Body, answer_id: str, asked: Sequence[tuple[tuple[int, ...], str, SamplingConfig]], drawn: int
) -> list[EngineRequest]:
    """So many of each prompt (its ids, its text, how it is continued), in order; of a search, as it is sent."""
    seed = secrets.randbits(63) if body.seed is None else body.seed & SEED_MASK
    salt = hashlib.sha256(body.cache_salt.encode()).digest() if body.cache_salt else b""
    # Routes are hashes of the text's beginning, which a cut prompt no longer has.
    cut = body.truncate_prompt_tokens is not None
    routes = [() if cut else hashes.route_hashes(text, model=body.model, salt=salt) for _, text, _ in asked]
    requests = [
        EngineRequest(
            request_id=f"{answer_id}-{number * drawn + choice}",
            prompt=prompt,
            sampling=msgspec.structs.replace(sampling, seed=(seed + choice) & SEED_MASK),
            salt=salt,
            route_hashes=routes[number],
        )
        for number, (prompt, _, sampling) in enumerate(asked)
        for choice in range(drawn)
    ]
    if not body.use_beam_search:
        return requests
    groups = [requests[start : start + drawn] for start in range(0, len(requests), drawn)]
    return [request for group in groups for request in beam_search.searched(body, group)]


def _check_generates(name: str, served: ModelProfile) -> None:
    check_model(name, served)
    if served.abilities.no_text:
        raise Refused(openai_errors.invalid(served.abilities.no_text, param="model", code="unsupported_model"))


def check_model(name: str, served: ModelProfile) -> None:
    """Whether a model of this name is served. Raises Refused."""
    if name not in served.names:
        raise Refused(openai_errors.model_not_found(name))


def _logprobs(body: Body) -> int:
    """How many of the likeliest tokens are shown beside each of the answer, -1 for no logprobs."""
    if isinstance(body, ChatBody):
        return body.top_logprobs if body.logprobs else -1
    assert isinstance(body, CompletionBody)
    return -1 if body.logprobs is None else body.logprobs


def _echoes(body: Body, prompts: Sequence[tuple[int, ...]], tokenizer: Tokenizer) -> tuple[str, ...]:
    if not isinstance(body, CompletionBody) or not body.echo:
        return ()
    cut = body.truncate_prompt_tokens is not None
    return tuple(
        tokenizer.decode(ids, special=not body.skip_special_tokens) if cut or not isinstance(source, str) else source
        for source, ids in zip(body.prompt, prompts, strict=True)
    )


def _sampling(body: Body, tokenizer: Tokenizer, drawn: int) -> SamplingConfig:
    """Without length and seed. top_p 0 leaves only the likeliest token, which is top_k 1; top_k -1 means off.

    drawn: choices for each prompt; where not all are shown, logprobs tell the best.
    """
    shown = _logprobs(body)
    echoed = shown if isinstance(body, CompletionBody) and body.echo else -1
    return SamplingConfig(
        temperature=body.temperature,
        top_k=1 if body.top_p == 0 else max(0, body.top_k),
        top_p=1.0 if body.top_p == 0 else body.top_p,
        min_p=body.min_p,
        max_tokens=1,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop_token_ids=tuple(body.stop_token_ids),
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=tuple(body.logit_bias),
        bad_words=_bad_words(body.bad_words, tokenizer),
        allowed_token_ids=tuple(body.allowed_token_ids),
        logprobs=max(shown, 0) if drawn > body.n else shown,
        prompt_logprobs=max(echoed, -1 if body.prompt_logprobs is None else body.prompt_logprobs),
    )


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Ids of each word as it begins a text and as it follows a blank, as vLLM does it."""
    found = []
    for word in words:
        bare = tokenizer.encode(word.lstrip(), special=False, limit=MAX_PROMPT_TOKENS)
        after_blank = tokenizer.encode(" " + word.lstrip(), special=False, limit=MAX_PROMPT_TOKENS)
        found.append(bare)
        if after_blank[:1] != bare[:1] and len(after_blank) == len(bare):
            found.append(after_blank)
    return tuple(ids for ids in found if ids)


def _chat_prompt(body: ChatBody, served: ModelProfile) -> tuple[list[tuple[int, ...]], list[str], Parsing | None]:
    tokenizer = served.tokenizer
    try:
        text = rendered(body, tokenizer, served.written[1])
        prompt = _cut(
            tokenizer.encode(text, special=body.add_special_tokens, limit=_longest(body, served)), body, served
        )
    except TemplateError as error:
        raise Refused(openai_errors.invalid(str(error), param="messages", code="chat_template_error")) from error
    except PromptTooLong as error:
        raise _too_long(body, error, served.max_context) from error
    shaping = {"messages", "tools", "chat_template_kwargs"}
    source = body.model_dump(include=shaping, exclude_none=True, exclude_unset=True)
    return [prompt], [hashes.request_text(source)], tool_choice.parsing_of(body, served.written, text)


def rendered(body: ChatTurn, tokenizer: Tokenizer, reasoning: str = "") -> str:
    """The prompt of a chat. reasoning: how the model marks its thoughts. Raises TemplateError and Refused."""
    tool_choice.check_shown(body.tools, tokenizer)
    variables = tool_choice.switches(body, tokenizer, reasoning)
    said, offered = tool_choice.as_said(body.messages or (), reasoning), tools.shown(body.tools)
    if body.continue_final_message:
        return tokenizer.continued(said, variables, tools=offered)
    add = body.add_generation_prompt is not False
    return tokenizer.rendered(said, variables, tools=offered, add_generation_prompt=add)


def _text_prompts(body: CompletionBody, served: ModelProfile) -> tuple[list[tuple[int, ...]], list[str]]:
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            try:
                ids = served.tokenizer.encode(prompt, special=body.add_special_tokens, limit=_longest(body, served))
            except PromptTooLong as error:
                raise _too_long(body, error, served.max_context) from error
        else:
            ids = tuple(prompt)
        if not ids:
            raise Refused(openai_errors.invalid("The prompt is empty.", param="prompt", code="invalid_value"))
        prompts.append(_cut(ids, body, served))
    return prompts, [hashes.request_text({"prompt": prompt}) for prompt in body.prompt]


def _longest(body: Body, served: ModelProfile) -> int:
    """Tokens beyond which a text is not even tokenized."""
    return served.max_context if body.truncate_prompt_tokens is None else MAX_PROMPT_TOKENS


def _cut(ids: tuple[int, ...], body: Body, served: ModelProfile) -> tuple[int, ...]:
    """The last ids of a prompt, or the first, as many as asked for; -1 asks for what fits beside the answer."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return ids
    asked = body.max_tokens or getattr(body, "max_completion_tokens", None) or DEFAULT_COMPLETION_TOKENS
    keep = max(1, served.max_context - asked) if keep < 0 else keep
    return ids[-keep:] if body.truncation_side == "left" else ids[:keep]


def _too_long(body: Body, error: PromptTooLong, limit: int) -> Refused:
    return Refused(
        openai_errors.context_length(
            limit=limit, prompt_tokens=error.least_tokens, max_tokens=body.max_tokens or 0, at_least=True
        )
    )


def _max_tokens(body: Body, prompt_tokens: int, served: ModelProfile, *, fit: bool) -> int:
    """Tokens this answer may have: as asked for, else OpenAI's 16 for a completion and all that fits for a chat."""
    limit = beam_search.fitting(body, prompt_tokens, served.max_context, served.ready)
    asked = body.max_tokens
    if isinstance(body, ChatBody):
        asked = asked or body.max_completion_tokens
    room = limit - prompt_tokens
    if fit and asked is not None and room > 0:
        asked = min(asked, room)
    if room < 1 or (asked or 0) > room:
        raise Refused(
            openai_errors.context_length(
                limit=limit, prompt_tokens=prompt_tokens, max_tokens=0 if asked is None else asked
            )
        )
    if asked is None:
        usual = served.defaults.get("max_tokens", room) if isinstance(body, ChatBody) else DEFAULT_COMPLETION_TOKENS
        asked = min(room, usual)
    if body.min_tokens > asked:
        message = f"min_tokens {body.min_tokens} is more than the {asked} tokens that the answer may have."
        raise Refused(openai_errors.invalid(message, param="min_tokens", code="invalid_value"))
    return asked


def _check_ids(prompts: Sequence[Sequence[int]], body: Body, vocab_size: int) -> None:
    check_ids(prompts, body.stop_token_ids, vocab_size)
    check_ids([], body.allowed_token_ids, vocab_size, param="allowed_token_ids")
    check_ids([], [token_id for token_id, _ in body.logit_bias], vocab_size, param="logit_bias")


def check_ids(
    prompts: Sequence[Sequence[int]], others: Sequence[int], vocab_size: int, *, param: str = "stop_token_ids"
) -> None:
    """An id beyond the embedding would stop the engine for everybody, whoever made it. param: the field of others."""
    for name, ids in [("prompt", prompt) for prompt in prompts] + [(param, others)]:
        if ids and max(ids) >= vocab_size:
            message = f"Token id {max(ids)} is out of range: the model's vocabulary has {vocab_size} ids."
            raise Refused(openai_errors.invalid(message, param=name, code="invalid_value"))
