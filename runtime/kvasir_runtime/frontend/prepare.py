"""From a request's bytes to a GenerationRequest: what the engine is sent and what its answer looks like.

Called in a worker thread for each request, since templates and tokenizers take time. It decides everything that can be
decided without the engine, and raises Refused; it knows no sockets and no event loop.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from kvasir_api import hashes, http_apis, openai_errors
from kvasir_runtime.frontend import beam_search, output_format, tool_results
from kvasir_runtime.frontend.chat_prompt import ChatPrompt, chat_prompt
from kvasir_runtime.frontend.chat_template import TemplateError
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_config import applied
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.model_profile import ModelProfile, served_name
from kvasir_runtime.frontend.output_format import OutputFormat
from kvasir_runtime.frontend.protocol import generation
from kvasir_runtime.frontend.protocol.generation import Body, ChatBody, CompletionBody
from kvasir_runtime.frontend.protocol.sampling_fields import MAX_LOGPROBS, MAX_STOP_CHARACTERS
from kvasir_runtime.frontend.protocol.validation import Raw, ReceivedBody
from kvasir_runtime.frontend.structured_outputs.build import check_total
from kvasir_runtime.frontend.tokenizer import PromptTooLong, Tokenizer
from kvasir_runtime.frontend.tool_results import ToolResultRenderer
from kvasir_runtime.wire import EngineRequest, Grammar, SamplingConfig, packed_ids

DEFAULT_COMPLETION_TOKENS = 16
SEED_MASK = (1 << 63) - 1
PACKED_TOKENS = 1024
"""A prompt from here on crosses the socket as one array."""
MAX_TEMPERATURE = 1e6
"""Beyond it logits are equal in float32, whatever a request requests."""
MAX_SHOWN_LOGPROBS = 1 << 18
"""Of one request: 20 MB of JSON."""


class Prompt(NamedTuple):
    """token_ids: of the prompt. source: the fields of the body that shape it, by which a gateway finds it again."""

    token_ids: tuple[int, ...]
    source: Mapping[str, Any]


def from_bytes(raw: Raw, profile: ModelProfile, *, chat: bool) -> GenerationRequest:
    """Parse, check, template and tokenize. Raises Refused."""
    body = generation.parse_chat(raw) if chat else generation.parse_completion(raw)
    if isinstance(raw, ReceivedBody) and profile.sender.priority is None and body.priority < profile.sender.most_urgent:
        raw.ignore("priority", f"`priority` is at least {profile.sender.most_urgent} here.", "unsupported_parameter")
    return from_body(body, profile, http_apis.CHAT_PREFIX if chat else "cmpl-")


def from_body(
    body: ChatBody | CompletionBody, profile: ModelProfile, prefix: str, *, fit: bool = False
) -> GenerationRequest:
    """The request of a body that was checked. Raises Refused.

    prefix: how the answer's id begins. fit: an answer that requests more tokens than fit has those that do.
    """
    model = _generating(body.model, profile)
    body = applied(body, profile.defaults)
    prompts, output, results = _prompted(body, profile)
    limits = [_max_tokens(body, len(prompt.token_ids), profile, fit=fit) for prompt in prompts]
    _check_ids(prompts, body, profile.tokenizer.vocab_size)
    num_drawn = body.n if body.use_beam_search else max(body.n, body.best_of or 1)
    if output.grammar is not None:
        check_total(output.grammar, len(prompts) * num_drawn)
    shown = _logprobs(body, profile.tokenizer.vocab_size)
    prompt_shown = _counted(body.prompt_logprobs, profile.tokenizer.vocab_size)
    sampling = _sampling(body, profile.tokenizer, num_drawn, output.grammar, (shown, prompt_shown))
    _check_scores(sampling.prompt_logprobs, [len(prompt.token_ids) * body.n for prompt in prompts], "prompt_logprobs")
    if shown > MAX_LOGPROBS:
        _check_scores(shown, [limit * num_drawn for limit in limits], "logprobs")
    answer_id = prefix + profile.instance + secrets.token_hex(12)
    requests = _requests(
        body,
        profile,
        answer_id,
        prompts,
        [msgspec.structs.replace(sampling, max_tokens=max(1, limit)) for limit in limits],
        num_drawn,
    )
    return GenerationRequest(
        answer_id=prefix + body.request_id if body.request_id else answer_id,
        model=model,
        chat=isinstance(body, ChatBody),
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        continuous_usage=body.stream_options is not None and body.stream_options.continuous_usage_stats,
        include_metrics=body.include_metrics and len(requests) == 1,
        requests=tuple(requests),
        num_prompts=len(prompts),
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        stops=tuple(body.stop),
        stop_ids=tuple(body.stop_token_ids),
        include_stop=body.include_stop_str_in_output,
        num_choices=body.n,
        logprobs=shown,
        prompt_logprobs=prompt_shown,
        echoes=_echoes(body, prompts, profile.tokenizer),
        continues=isinstance(body, CompletionBody) or body.continue_final_message,
        only_prompt=body.max_tokens == 0,
        special=not body.skip_special_tokens,
        token_ids=body.return_token_ids,
        as_token_ids=body.return_tokens_as_token_ids,
        parser=output.parser,
        tool_results=results,
        grammar_field=output.field,
    )


def _prompted(body: Body, profile: ModelProfile) -> tuple[list[Prompt], OutputFormat, ToolResultRenderer | None]:
    """The prompts of a body, what is looked for in their answers, and what shows results of tools to the model."""
    if not isinstance(body, ChatBody):
        return _text_prompts(body, profile), output_format.of_completion(body), None
    template = chat_prompt(body, profile)
    text, prompt = _chat_prompt(body, template, profile)
    output = output_format.of_chat(body, profile.parsers, text)
    if not body.async_tool_calls:
        return [prompt], output, None
    tool_results.check(body, profile.parsers, output)
    renderer = ToolResultRenderer(
        prompt=template, tokenizer=profile.tokenizer, max_context=profile.max_context, salt=_salt(body, profile)
    )
    return [prompt], output, renderer


def _requests(
    body: Body,
    profile: ModelProfile,
    answer_id: str,
    prompts: Sequence[Prompt],
    samplings: Sequence[SamplingConfig],
    num_drawn: int,
) -> list[EngineRequest]:
    """As many of each prompt as are sampled, in order; with beam search as one search of each prompt."""
    seed = secrets.randbits(63) if body.seed is None else body.seed & SEED_MASK
    salt, sender = _salt(body, profile), profile.sender
    requests = []
    for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        # Routes are hashes of the text's beginning, which a cut prompt no longer has.
        cut = body.truncate_prompt_tokens is not None
        text = b"" if cut else hashes.utf_8(hashes.request_text(prompt.source))
        routes = hashes.route_hashes(text, model=profile.names[0], salt=salt)
        packed, block_hashes = _packed(prompt.token_ids, salt, profile)
        peer_tokens = sender.kv_peer_tokens(len(prompt.token_ids), len(text)) if sender.kv_peer else 0
        group = [
            EngineRequest(
                request_id=f"{answer_id}-{number * num_drawn + choice}",
                prompt=prompt.token_ids,
                sampling=msgspec.structs.replace(sampling, seed=(seed + choice) & SEED_MASK),
                salt=salt,
                route_hashes=routes,
                packed_prompt=packed,
                block_hashes=block_hashes,
                priority=sender.priority_of(body.priority),
                ttft_s=sender.ttft_s,
                tenant=sender.tenant,
                weight=sender.weight,
                admitted=number + choice > 0,
                kv_peer=sender.kv_peer,
                kv_peer_tokens=peer_tokens,
                kv_peer_computes=sender.kv_peer_computes,
            )
            for choice in range(num_drawn)
        ]
        requests += beam_search.searched(body, group) if body.use_beam_search else group
    return requests


def _salt(body: Body, profile: ModelProfile) -> bytes:
    """Separates what is cached of this request from what others find."""
    return profile.sender.cache_salt(body.cache_salt)


def _packed(token_ids: tuple[int, ...], salt: bytes, profile: ModelProfile) -> tuple[bytes, bytes]:
    """A long prompt as it crosses the socket, and the hashes of its blocks: no work for the engine's thread."""
    if len(token_ids) < PACKED_TOKENS or profile.ready is None:
        return b"", b""
    packed, root = packed_ids(token_ids), hashes.block_root(salt=salt, secret=profile.hash_salt)
    return packed, hashes.prompt_block_hashes(packed, root=root, block_size=profile.ready.block_size)


def _generating(name: str | None, profile: ModelProfile) -> str:
    """The name of a model that generates text. Raises Refused."""
    if profile.capabilities.no_text:
        served_name(name, profile)
        raise Refused(openai_errors.invalid(profile.capabilities.no_text, param="model", code="unsupported_model"))
    return served_name(name, profile)


def _check_scores(num_likeliest: int, num_tokens: Sequence[int], param: str) -> None:
    """Whether the logprobs are few enough to be written. num_tokens: of each prompt or answer, all choices."""
    total = sum(num_tokens) * (num_likeliest + 1)
    if total > MAX_SHOWN_LOGPROBS:
        message = f"There would be {total} logprobs; at most {MAX_SHOWN_LOGPROBS} are answered at a time."
        raise Refused(openai_errors.invalid(message, param=param, code="invalid_value"))


def _logprobs(body: Body, vocab_size: int) -> int:
    """How many tokens are shown beside each of the answer, -1 for no logprobs."""
    if body.logprob_token_ids:
        return len(body.logprob_token_ids)
    if isinstance(body, ChatBody):
        return _counted(body.top_logprobs if body.logprobs else None, vocab_size)
    assert isinstance(body, CompletionBody)
    return _counted(body.logprobs, vocab_size)


def _counted(requested: int | None, vocab_size: int) -> int:
    """A count of logprobs: -1, all of them, is the vocabulary; none at all is -1."""
    if requested is None:
        return -1
    return vocab_size if requested < 0 else requested


def _echoes(body: Body, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Texts that come before the answers: of prompts, or of a chat the last message where it is the assistant's."""
    if isinstance(body, ChatBody):
        last = body.messages[-1]
        return (last.content,) if body.echo and last.role == "assistant" else ()
    if not body.echo:
        return ()
    cut = body.truncate_prompt_tokens is not None
    return tuple(
        tokenizer.decode(prompt.token_ids, special=not body.skip_special_tokens)
        if cut or not isinstance(source, str)
        else source
        for source, prompt in zip(body.prompt, prompts, strict=True)
    )


def _sampling(
    body: Body, tokenizer: Tokenizer, num_drawn: int, grammar: Grammar | None, logprobs: tuple[int, int]
) -> SamplingConfig:
    """Without length and seed. top_p 0 leaves only the most likely token, which is top_k 1; top_k -1 means off.

    num_drawn: choices for each prompt; where not all are shown, logprobs determine the best. logprobs: shown of the
    answer and of the prompt.
    """
    shown, prompt_shown = logprobs
    echoed = shown if isinstance(body, CompletionBody) and body.echo else -1
    return SamplingConfig(
        temperature=min(body.temperature, MAX_TEMPERATURE),
        top_k=1 if body.top_p == 0 else max(0, body.top_k),
        top_p=1.0 if body.top_p == 0 else body.top_p,
        min_p=body.min_p,
        max_tokens=1,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop_token_ids=_stop_token_ids(body, tokenizer),
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=tuple(body.logit_bias),
        bad_words=_bad_words(body.bad_words, tokenizer),
        allowed_token_ids=tuple(body.allowed_token_ids),
        logprobs=max(shown, 0) if num_drawn > body.n else shown,
        logprob_token_ids=tuple(body.logprob_token_ids),
        prompt_logprobs=max(echoed, prompt_shown),
        grammar=grammar,
    )


def _stop_token_ids(body: Body, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Those of the body; a chat also ends where its template ends a message, whatever the checkpoint's configs name."""
    ends = () if not isinstance(body, ChatBody) or body.ignore_eos else (tokenizer.turn_end,)
    return tuple(dict.fromkeys((*body.stop_token_ids, *(end for end in ends if end is not None))))


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Ids of each word as it begins a text and as it follows a blank, as vLLM does it."""
    found = []
    for word in words:
        bare = tokenizer.encode(word.lstrip(), special=False, limit=MAX_STOP_CHARACTERS)
        after_blank = tokenizer.encode(" " + word.lstrip(), special=False, limit=MAX_STOP_CHARACTERS)
        found.append(bare)
        if after_blank[:1] != bare[:1] and len(after_blank) == len(bare):
            found.append(after_blank)
    return tuple(ids for ids in found if ids)


def _chat_prompt(body: ChatBody, template: ChatPrompt, profile: ModelProfile) -> tuple[str, Prompt]:
    """The text of a chat's prompt, and the prompt."""
    try:
        text = template.text(profile.tokenizer)
    except TemplateError as error:
        raise Refused(openai_errors.invalid(str(error), param="messages", code="chat_template_error")) from error
    shaping = {"messages", "tools", "chat_template_kwargs"}
    source = body.model_dump(include=shaping, exclude_none=True, exclude_unset=True)
    return text, Prompt(_encoded(text, body, profile), source)


def _text_prompts(body: CompletionBody, profile: ModelProfile) -> list[Prompt]:
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            ids = _encoded(prompt, body, profile)
        else:
            ids = _cut(tuple(prompt), body, profile)
        if not ids:
            raise Refused(openai_errors.invalid("The prompt is empty.", param="prompt", code="invalid_value"))
        prompts.append(Prompt(ids, {"prompt": prompt}))
    return prompts


def _encoded(text: str, body: Body, profile: ModelProfile) -> tuple[int, ...]:
    """Ids of a text, cut as requested. What cannot stay, or can never fit, is not tokenized."""
    keep, special = _keep(body, profile), body.add_special_tokens
    try:
        if keep is None or keep > profile.max_context:
            # Up to twice the context, so that an error says by how much a prompt is too long.
            limit = 2 * profile.max_context
            return profile.tokenizer.encode(text, special=special, limit=limit, salt=_salt(body, profile))
        return profile.tokenizer.encode_cut(
            text, special=special, keep=keep, side=body.truncation_side, salt=_salt(body, profile)
        )
    except PromptTooLong as error:
        raise _too_long(body, error, profile.max_context) from error


def _keep(body: Body, profile: ModelProfile) -> int | None:
    """Most tokens of a prompt that is cut; -1 keeps what fits beside the answer."""
    if body.truncate_prompt_tokens != -1:
        return body.truncate_prompt_tokens
    asked = body.max_tokens or getattr(body, "max_completion_tokens", None) or DEFAULT_COMPLETION_TOKENS
    return max(1, profile.max_context - asked)


def _cut(ids: tuple[int, ...], body: Body, profile: ModelProfile) -> tuple[int, ...]:
    """The last ids of a prompt, or the first, as many as requested."""
    keep = _keep(body, profile)
    if keep is None:
        return ids
    return ids[-keep:] if body.truncation_side == "left" else ids[:keep]


def _too_long(body: Body, error: PromptTooLong, limit: int) -> Refused:
    return Refused(
        openai_errors.context_length(
            limit=limit,
            prompt_tokens=error.least_tokens,
            max_tokens=body.max_tokens or 0,
            at_least=True,
            param=_prompt_field(body),
        )
    )


def _prompt_field(body: Body) -> str:
    return "messages" if isinstance(body, ChatBody) else "prompt"


def _max_tokens(body: Body, prompt_tokens: int, profile: ModelProfile, *, fit: bool) -> int:
    """Tokens that the answer may have: as requested, else OpenAI's 16 for a completion and all that fits for a chat."""
    limit = beam_search.fitting(body, prompt_tokens, profile.max_context, profile.ready)
    asked = body.max_tokens
    if isinstance(body, ChatBody):
        asked = asked or body.max_completion_tokens
    room = limit - prompt_tokens
    if fit and asked is not None and room > 0:
        asked = min(asked, room)
    if room < 1 or (asked or 0) > room:
        raise Refused(
            openai_errors.context_length(
                limit=limit, prompt_tokens=prompt_tokens, max_tokens=asked or 0, param=_prompt_field(body)
            )
        )
    if asked is None:
        usual = profile.defaults.get("max_tokens", room) if isinstance(body, ChatBody) else DEFAULT_COMPLETION_TOKENS
        asked = min(room, usual)
    if body.min_tokens > asked:
        message = f"min_tokens {body.min_tokens} is more than the {asked} tokens that the answer may have."
        raise Refused(openai_errors.invalid(message, param="min_tokens", code="invalid_value"))
    return asked


def _check_ids(prompts: Sequence[Prompt], body: Body, vocab_size: int) -> None:
    check_ids([prompt.token_ids for prompt in prompts], body.stop_token_ids, vocab_size)
    check_ids([], body.allowed_token_ids, vocab_size, param="allowed_token_ids")
    check_ids([], body.logprob_token_ids, vocab_size, param="logprob_token_ids")
    check_ids([], [token_id for token_id, _ in body.logit_bias], vocab_size, param="logit_bias")


def check_ids(
    prompts: Sequence[Sequence[int]], others: Sequence[int], vocab_size: int, *, param: str = "stop_token_ids"
) -> None:
    """Raises Refused for an id beyond the embedding, which would stop the engine. param: the field of others."""
    for name, ids in [("prompt", prompt) for prompt in prompts] + [(param, others)]:
        if ids and max(ids) >= vocab_size:
            message = f"Token id {max(ids)} is out of range: the model's vocabulary has {vocab_size} ids."
            raise Refused(openai_errors.invalid(message, param=name, code="invalid_value"))
