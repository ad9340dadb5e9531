"""Messages between the API process and the engine process, the only language the two share.

They travel as msgpack over a local socket (never pickle), are addressed by client, and are decoded into these
frozen structs with their types checked. This module knows nothing of HTTP, tensors or scheduling.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Literal

import msgspec

from kvasir_api import cache_groups
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_api.roofline import StepWork
from kvasir_api.speculation import NO_DRAFTER, DraftModelSize
from kvasir_api.state import RuntimeState
from kvasir_runtime.engine_reports import PrefixChanges, Progress, TenantUsage
from kvasir_runtime.rank_states import RankSize

FinishReason = Literal["stop", "length", "abort", "error"]
GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark", "structural_tag"]


class Grammar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer has to look like. It has been compiled once, within the caps, before it is sent.

    text: JSON text for json_schema (a schema), choice (a list of strings) and structural_tag; the pattern of regex; the
    grammar of lark; empty for json_object, which is any JSON object. after: a text, such as the end of the thoughts, up
    to which everything may be written; the grammar holds for what follows it. check: JSON text of a schema that the
    answer is checked against while it is written, since the grammar allows more; "" where the grammar is enough.
    """

    kind: GrammarKind
    text: str = ""
    after: str = ""
    check: str = ""


class SamplingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is drawn. Every value is already validated and complete; None does not occur.

    temperature 0 means greedy, and then seed, top_k, top_p and min_p have no effect. top_k 0 means off.
    The draw is a function of (seed, position) alone, so batch neighbours cannot change it.
    The logits are changed in this order before the draw: only allowed_token_ids (none: all) remain, logit_bias is
    added, tokens of prompt or answer are divided (above 0) or multiplied (below) by repetition_penalty, those of the
    answer lose frequency_penalty for each time they occur and presence_penalty once, and the last token of a bad word
    is forbidden where the answer ends in those before it. What grammar forbids is forbidden last, so that it wins.
    logprobs: how many of the likeliest tokens are reported beside each drawn one, -1 for not even that one;
    prompt_logprobs the same for the prompt. Both are of the unchanged logits. logprob_token_ids: the tokens that are
    reported beside each drawn one instead of the likeliest, in this order.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int = -1
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int = -1
    grammar: Grammar | None = None


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """One token under the model: the natural logarithm of its probability, and its rank from 1.

    top_ids, top: the likeliest tokens at its place, likeliest first, or those that were asked for; their logarithms.
    """

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()


class BeamSearchConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Search for the likeliest answers instead of drawing one; the rules are in `core.beam_search`.

    width: beams that run side by side, at least as many as answers. early_stopping: end as soon as width answers have
    ended (True), when no better one is likely (False), or only when none is possible ("never").
    answers: ids of the requests that the best are reported for, best first, at the end; the first is the request's own.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    answers: tuple[str, ...]

    def max_length(self, prompt_tokens: int, num_blocks: int, block_size: int) -> int:
        """Longest prompt and answer that a cache certainly holds: beams share the full blocks of their prompt.

        The last token of an answer is never computed, so it needs no place.
        """
        shared = prompt_tokens // block_size
        return (shared + max(0, num_blocks - shared) // max(1, self.width)) * block_size + 1


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a prompt without an answer: one vector, of the hidden states that the head would see.

    last, cls: that of the last or first token. mean: their mean over the prompt. labels: the logits of a classification
    head. tokens: the logits of token_ids, in that order. head_of: the hidden state that goes through the head.
    second_from: where the second text of a pair begins, for encoders; 0 where there is one text.
    """

    kind: Literal["last", "cls", "mean", "labels", "tokens"]
    token_ids: tuple[int, ...] = ()
    head_of: Literal["last", "cls", "mean"] = "last"
    second_from: int = 0


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt to continue. Lengths and ids were checked against the model before it was sent.

    pooling: the prompt is computed, nothing is drawn, and sampling has no effect.
    salt separates prefix-cache contents of tenants; route_hashes are the chained hashes of the request's text
    pieces, in order, which the engine publishes for resident prefixes.
    beam: search instead of drawing; then only max_tokens, min_tokens, stops, logprobs and grammar of sampling have
    an effect.
    follows: id of the request with the beams whose further answers are reported under this id; never submitted itself.
    packed_prompt: the ids of a long prompt as little-endian uint32; it crosses the socket in place of prompt, since the
    engine would spend milliseconds on decoding so many numbers. block_hashes: of its full blocks, one behind the other,
    made by `hashes.prompt_block_hashes` from the salt of Ready and of the request; empty where the engine hashes.
    priority: lower is more urgent. ttft_s: objective in seconds from the arrival to the first token, 0 for none.
    tenant: name of who pays for it; weight: its share among tenants that wait, above 0.
    generated: ids of the answer that another engine has drawn and reported. The next one is drawn behind them, as after
    a preemption; they count against max_tokens and are not reported again. Neither beams nor prompt_logprobs beside it.
    admitted: it waits as long as it takes. The engine judged an earlier one of its HTTP request, or another engine has
    begun its answer.
    kv_peer: IP address and port where another replica gives out its blocks, which holds the beginning of the prompt, as
    far as is known kv_peer_tokens of it (0: unknown); "" for none. kv_peer_computes: that replica is to compute the
    whole prompt first. for_peer: the prompt alone is computed, for another replica, which fetches its blocks.
    prefetch: nothing is computed. What kv_peer holds of the prompt comes to the host, for requests to come; the one
    output, once that has ended, has as cached_tokens how many came.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingConfig
    pooling: PoolingConfig | None = None
    salt: bytes = b""
    route_hashes: tuple[bytes, ...] = ()
    beam: BeamSearchConfig | None = None
    follows: str = ""
    packed_prompt: bytes = b""
    block_hashes: bytes = b""
    priority: int = 0
    ttft_s: float = 0.0
    tenant: str = ""
    weight: float = 1.0
    generated: tuple[int, ...] = ()
    admitted: bool = False
    kv_peer: str = ""
    kv_peer_tokens: int = 0
    kv_peer_computes: bool = False
    for_peer: bool = False
    prefetch: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.packed_prompt) // 4 or len(self.prompt)

    def prompt_ids(self) -> "array[int] | list[int]":
        """The ids of the prompt, to be changed by the caller."""
        if not self.packed_prompt:
            return list(self.prompt)
        return unpacked_ids(self.packed_prompt)


def unpacked_ids(packed: bytes) -> "array[int]":
    """Ids of EngineRequest.packed_prompt."""
    ids = array("I", packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def packed_ids(token_ids: Sequence[int]) -> bytes:
    """Ids as EngineRequest.packed_prompt has them."""
    ids = array("I", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a client, sent as soon as its socket exists, also while the engine still loads.

    From then on the client gets Progress, Ready or EngineFailed (the latest at once) and every StepOutputs.
    """


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Take this request into the queue."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Forget this request at the next step and free its blocks; no output follows. Unknown ids are ignored.

    reason: "stop" where a stop string ended it (a success), "abort" where the client went away.
    """

    request_id: str
    reason: Literal["stop", "abort"] = "abort"


class Inject(msgspec.Struct, frozen=True, tag="inject"):
    """Append these ids to what is known of a running request, as soon as none of its tokens is in flight.

    They are no part of the answer and do not count as such. The next output with tokens says that they stand before
    them. Ids of requests that have ended, and ids for which there is no room, are ignored.
    """

    request_id: str
    token_ids: tuple[int, ...]


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Let no later request find what was computed so far, and erase what the host holds of it. Requests go on.

    owner: only of blocks with this mark (`hashes.owner_of_salt`); b"" for all.
    """

    owner: bytes = b""


class PeerKeys(msgspec.Struct, frozen=True, tag="peer_keys"):
    """Secrets that replicas of the service share, in place of those before: with them blocks are exchanged."""

    keys: tuple[bytes, ...]


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """The pod is leaving: report phase draining from now on. Running and waiting requests are finished."""


class HandBack(msgspec.Struct, frozen=True, tag="hand_back"):
    """End every request that was not admitted yet: finish_reason "abort", code "draining". Another may have it."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Stop the engine process now."""


ToEngine = Hello | Submit | Abort | Inject | Forget | PeerKeys | Drain | HandBack | Shutdown


class EngineOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did for one request: zero or more tokens, and on the last output why it ended.

    stop_token_id is the id that ended it (EOS or a stop id), which is not among token_ids.
    preemptions: how often it lost its place before it ended; on its last output.
    cached_tokens counts prompt tokens found in the prefix cache at first admission; set on every output.
    queue_s: seconds between Submit and the plan with its first chunk; on the first output with tokens, else -1.
    logprobs: one for each of token_ids where they were asked for. prompt_logprobs: of the next tokens of the prompt, in
    order from the second one on; all of them come before or with the first of token_ids.
    score: of an answer of a beam search, on its only output: the sum of its logprobs by its length (BeamSearchConfig);
    -inf where its grammar has fewer answers, so that there is none.
    pooled: the vector of a request with pooling, little-endian float32, on its one output; finish_reason is "stop".
    injected: how many ids of Inject messages stand before token_ids.
    message explains finish_reason "error" and "abort"; code is its code in an API's error, "" for the usual one.
    retry_after_s: of a request that the queue refused, after how many seconds another try may succeed.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    queue_s: float = -1.0
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[Logprobs, ...] = ()
    score: float = 0.0
    pooled: bytes = b""
    injected: int = 0
    message: str = ""
    code: str = ""
    retry_after_s: float = 0.0


class StepOutputs(msgspec.Struct, frozen=True, tag="step"):
    """What one step did for one client's requests; sent with no outputs as a heartbeat when idle (every 0.5 s).

    computed_tokens: of all requests in this step, 0 where nothing was computed. prefixes: None where none changed; the
    first that a client gets are whole. tenants: what they used since a message had this last, about once a second.
    expected_s: how long the next message may take; 0 where that is not known.
    """

    outputs: tuple[EngineOutput, ...]
    state: RuntimeState
    computed_tokens: int = 0
    prefixes: PrefixChanges | None = None
    tenants: dict[str, TenantUsage] | None = None
    expected_s: float = 0.0


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an engine once its model is loaded: for the limits of requests, the banner, the metrics.

    max_model_len: prompt plus answer of one request, also where the cache is the limit. max_batch_tokens: query tokens
    of one step. quantization: formats of the weights that are not in dtype, such as "int4, int8". fallback: why slower
    kernels serve than the device has, if so. hidden_size: length of what is pooled. head: what the model ends in; only
    one over the vocabulary can generate. num_blocks: of the KV cache, for all cache groups together; attentions: of
    each; kv_bytes_per_token: of a token in every layer, and in what blocks leave empty. host_blocks: of the second
    tier, 0 without. host_weights_bytes: what is on the host; weights_copy_s: of its copy to the device, in every step.
    work: what steps compute and read, None where that is not known. no_drafts: why there are none. kv_transfer_port:
    where blocks are given to other replicas, and theirs fetched; 0 where they are not. rank_sizes: of a rank in each
    stage; empty where one process computes. data_ranks: data-parallel ranks, each of which has as many of the blocks; a
    sequence has those of one.
    """

    device: str
    kernels: str
    dtype: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_sequences: int
    max_batch_tokens: int
    weights_bytes: int
    kv_bytes_per_token: int
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()
    load_s: float = 0.0
    warm_s: float = 0.0
    hidden_size: int = 0
    head: Literal["vocabulary", "labels", "none"] = "vocabulary"
    num_labels: int = 0
    quantization: str = ""
    fallback: str = ""
    host_blocks: int = 0
    host_weights_bytes: int = 0
    weights_copy_s: float = 0.0
    attentions: tuple[LayerAttention, ...] = (FULL,)
    work: StepWork | None = None
    no_drafts: str = ""
    kv_transfer_port: int = 0
    drafter: DraftModelSize = NO_DRAFTER
    rank_sizes: tuple[RankSize, ...] = ()
    data_ranks: int = 1

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds, each in all layers."""
        return self.num_blocks * self.block_size // len(self.attentions)

    @property
    def block_bytes(self) -> int:
        """Of one block of the KV cache, of any group."""
        return self.kv_bytes_per_token * self.block_size // len(self.attentions)

    @property
    def max_cached_tokens(self) -> int:
        """The longest sequence that the KV cache (of a data-parallel rank) holds alone; more than its capacity where
        layers see a window only.
        """
        return cache_groups.longest_sequence(
            self.attentions,
            self.num_blocks // self.data_ranks,
            block_size=self.block_size,
            chunk_tokens=self.max_batch_tokens,
            limit=self.max_model_len,
        )


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine takes requests. hash_salt: the secret from which hashes of blocks begin; it is not logged."""

    facts: EngineFacts
    hash_salt: bytes = b""


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot go on; one line for a person. The process exits after it.

    refusal: model or options are at fault (a damaged file, too little memory), so that another try ends the same way.
    """

    message: str
    refusal: bool = False


FromEngine = StepOutputs | Progress | Ready | EngineFailed
