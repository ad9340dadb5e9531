"""What a model's config states before anything is loaded, and the forecast that follows from it for one replica.

Written by `kvasir plan --facts` in a pod without accelerator, as the pod's last words; read by the operator, which cannot
see the model itself. Pure; the arithmetic is forecast.py's, which the runtime uses too.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, Literal

import msgspec

from kvasir_api import forecast, hf_config, layouts, model_shape, rank_forecast
from kvasir_api.model_shape import ModelShape
from kvasir_api.model_uri import VERSION
from kvasir_api.options import RuntimeOptions
from kvasir_api.roofline import Card, Roofline
from kvasir_api.speculation import NO_DRAFTER, DraftModelSize, draft_model, reads_own_layer
from kvasir_api.stored_bits import Compute

SCHEMA: Final = 10
"""Of ModelFacts with its ModelShape: a field that other facts lack, or whose meaning changed, is another schema."""

MAX_BYTES: Final = 4096
"""A kubelet keeps so much of a container's last words."""

Verdict = Literal["Fits", "TooSmall", "Unknown"]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a model. supported: the runtime that read it has this architecture.

    cpu_dtype: type that --dtype auto comes to on the processor of the node where it was read. overrides: a digest of the
    option hfOverrides that it was read with, see `overrides_digest`. draft_model: that the option speculation names, whose
    sizes are drafter; None where its config could not be read. own_drafter: those of the layer of its checkpoint that drafts,
    None where it has none that can be used.
    """

    schema: int = SCHEMA
    architecture: str
    supported: bool
    cpu_dtype: str
    shape: ModelShape
    overrides: str = ""
    draft_model: str = ""
    drafter: ModelShape | None = None
    own_drafter: ModelShape | None = None


class RemoteInspection(msgspec.Struct, frozen=True, kw_only=True):
    """What a source has under a uri: the last words of a pod that looked at a model there.

    commit: the version, as `kvasir_api.model_uri` has it, that the uri stands for now. download_bytes: of the files that serving it needs. facts: None where the
    config cannot be judged; message says why.
    """

    commit: str
    download_bytes: int = 0
    facts: ModelFacts | None = None
    message: str = ""


def overrides_digest(hf_overrides: str) -> str:
    """Of the option, "" where it is not set: facts of a config with other fields are those of another model.

    Spellings of the same JSON have the same digest. Raises ValueError for what is none.
    """
    found = hf_config.parsed_overrides(hf_overrides)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:8] if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one replica would hold. kv_tokens and weights_bytes: 0 when they are not known.

    requests: of the longest length that the cache holds at once. message: the numbers, or why there are none.
    stream_tokens_per_s, batch_tokens_per_s: decoded at best for one request alone, and for a full batch whose requests
    fill the cache; prefill_tokens_per_s: of prompts. 0 where what the card can do is not known.
    """

    verdict: Verdict
    weights_bytes: int = 0
    kv_tokens: int = 0
    requests: int = 0
    stream_tokens_per_s: float = 0.0
    batch_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    message: str = ""

    @property
    def known(self) -> bool:
        """Whether kv_tokens and requests are a forecast; 0 of them is one too."""
        return self.verdict != "Unknown"


def encode(facts: ModelFacts | RemoteInspection) -> bytes:
    """Compact JSON. Raises ValueError when it is too long to be anybody's last words."""
    document = msgspec.json.encode(facts)
    if len(document) > MAX_BYTES:
        raise ValueError(f"the facts take {len(document)} bytes, more than {MAX_BYTES}")
    return document


@lru_cache(maxsize=4096)
def decode(document: str) -> ModelFacts:
    """The facts of a document; unknown fields are ignored. Raises ValueError for anything that is none."""
    try:
        facts = msgspec.json.decode(document, type=ModelFacts)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not the facts of a model: {error}") from error
    if facts.schema != SCHEMA:
        raise ValueError(f"facts of schema {facts.schema}, expected {SCHEMA}")
    model_shape.check(facts.shape)
    for drafter in (facts.drafter, facts.own_drafter):
        if drafter is not None:
            model_shape.check(drafter)
    return facts


def decode_remote(document: str) -> RemoteInspection:
    """What a source was found to have, with the errors of decode()."""
    try:
        found = msgspec.json.decode(document, type=RemoteInspection)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not the inspection of a model that is fetched: {error}") from error
    if not VERSION.fullmatch(found.commit):
        raise ValueError(f"the source named {found.commit[:80]!r}, which is no version")
    return found


def roofline(facts: ModelFacts, options: RuntimeOptions, card: Card, device: Compute = "cuda") -> Roofline | None:
    """How fast the model could decode on a card; None for what the card's numbers say nothing of.

    Of products in 32 bits no data sheet's number for 16 says anything.
    """
    dtype = dtype_of(facts, options, device)
    if not facts.supported or dtype == "float32":
        return None
    cached = dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    return Roofline(
        shape=facts.shape,
        card=card,
        dtype=dtype,
        quantization=options.quantization,
        kv_bytes=facts.shape.layer_bytes_per_token(cached),
        host_weights_bytes=facts.shape.host_weights_bytes(dtype, options.quantization, options.weights_host_bytes)[0],
    )


def predicted(
    facts: ModelFacts, options: RuntimeOptions, *, device: Compute, memory_bytes: int, card: Card | None = None
) -> Prediction:
    """What one replica with so much memory would hold, and how fast it could be on a card of which that is known.

    memory_bytes: of the accelerator, or the container's limit.

    TooSmall only what the runtime refuses for certain: weights and the least cache that it may serve with. Activations
    and the process itself, which only a measurement knows, count for the tokens.
    """
    if not facts.supported:
        return Prediction(verdict="Unknown", message=f"architecture {facts.architecture} is not known")
    facts = msgspec.structs.replace(facts, shape=held_on(facts.shape, device))
    refusal = cache_refusal(facts.shape, options, device)
    if refusal:
        return Prediction(verdict="Unknown", message=refusal)
    dtype = dtype_of(facts, options, device)
    if device == "cpu":  # which the runtime refuses: nothing would be saved there
        options = options.model_copy(update={"weights_host_bytes": 0})
    try:
        held = _of_all_ranks(facts, options, dtype, device, memory_bytes)
    except ValueError as error:
        return Prediction(verdict="Unknown", message=str(error))
    known = roofline(facts, options, card, device) if card else None
    return _with_speeds(held, known, options) if known and held.kv_tokens else held


def held_on(shape: ModelShape, device: Compute) -> ModelShape:
    """The same model with its numbers in few bits as a device holds them."""
    return replace(shape, held=shape.cpu_held) if device == "cpu" else shape


def cache_refusal(shape: ModelShape, options: RuntimeOptions, device: Compute) -> str:
    """Why the model cannot have the KV cache of the options; empty where it can."""
    if options.kv_cache_dtype != "int4":
        return ""
    return forecast.int4_cache_refusal(latent=shape.latent_row > 0, head_dim=shape.head_dim, device=device)


def _with_speeds(held: Prediction, known: Roofline, options: RuntimeOptions) -> Prediction:
    """Of requests that fill the cache, at most as long as they may be; a model without a head decodes nothing."""
    reads = replace(held, prefill_tokens_per_s=known.prefill_tokens_per_s())
    if not known.shape.head:
        return reads
    longest = options.max_model_len or known.shape.max_positions
    rows = max(1, min(options.max_sequences, held.kv_tokens // _block_size(known.shape, options)))
    context = known.shape.longest_sequence(held.kv_tokens // rows, 1, longest)
    return replace(
        reads,
        stream_tokens_per_s=known.stream_tokens_per_s(longest),
        batch_tokens_per_s=known.batch_tokens_per_s(rows=rows, kv_tokens=rows * context),
    )


def _of_all_ranks(
    facts: ModelFacts, options: RuntimeOptions, dtype: str, device: Compute, memory_bytes: int
) -> Prediction:
    """Of data-parallel ranks each has an equal part of the memory, and a cache of its own: no request is in two of them.
    Raises ValueError for a model that they cannot share.
    """
    ranks = options.data_parallel_size
    if ranks > 1:
        part = layouts.of_data_rank(facts.shape, ranks, whole_experts=options.enable_expert_parallel)
        facts = msgspec.structs.replace(facts, shape=part)
        options = options.model_copy(update={"kv_cache_tokens": -(-options.kv_cache_tokens // ranks)})
    fixed = options.kv_cache_tokens and not facts.shape.keeps_nothing
    held = (_of_a_fixed_cache if fixed else _of_what_is_left)(facts, options, dtype, device, memory_bytes // ranks)
    if ranks == 1:
        return held
    of_all = {name: getattr(held, name) * ranks for name in ("weights_bytes", "kv_tokens", "requests")}
    return replace(held, **of_all, message=f"at each of {ranks} ranks {held.message}")


def _of_what_is_left(
    facts: ModelFacts, options: RuntimeOptions, dtype: str, device: Compute, memory_bytes: int
) -> Prediction:
    """The cache takes what weights, a step and the process leave of the share of memory."""
    drafter = _drafter(facts, options, dtype, device)
    copies_bytes = rank_forecast.copies_of_states(facts.shape, options, dtype, device)
    fitted = partial(_fit, facts.shape, options, dtype, memory_bytes, drafter=drafter, copies_bytes=copies_bytes)
    likely, certain = fitted(device=device), fitted(device=None)
    block_size = _block_size(facts.shape, options)
    tokens = likely.kv_tokens // block_size * block_size
    chunk_tokens = _batch_tokens(facts.shape, options, device)
    return Prediction(
        verdict=certain.verdict,
        weights_bytes=likely.weights_bytes,
        kv_tokens=tokens,
        requests=_requests(facts.shape, options, tokens, chunk_tokens),
        message=(likely if certain.verdict == "Fits" else certain).message,
    )


def _drafter(facts: ModelFacts, options: RuntimeOptions, dtype: str, device: Compute) -> DraftModelSize:
    """What the drafter takes; nothing on cards, where none drafts, and where what was read is not of this one."""
    drafter = facts.drafter if facts.draft_model == draft_model(options.speculation) else None
    if reads_own_layer(options.speculation, ranks=options.ranks):
        drafter = facts.own_drafter
    if device != "cpu" or drafter is None:
        return NO_DRAFTER
    return drafter_size(
        held_on(drafter, device),
        facts.shape,
        dtype=dtype,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
    )


def drafter_size(
    drafter: ModelShape, model: ModelShape, *, dtype: str, quantization: str, kv_cache_dtype: str
) -> DraftModelSize:
    """What a draft model takes beside a model: its cache has a block for each of the model's, whose cache groups have one
    each for the same tokens. dtype, quantization, kv_cache_dtype: as of `forecast.fit`, for both.
    """
    token_bytes = drafter.layer_bytes_per_token(dtype if kv_cache_dtype == "auto" else kv_cache_dtype)
    return DraftModelSize(
        weights_bytes=drafter.weights_bytes(dtype, quantization),
        kv_bytes_per_token=drafter.layers * token_bytes * len(model.attentions),
    )


def _block_size(shape: ModelShape, options: RuntimeOptions) -> int:
    """Tokens of a block: those of the option, more where a state would not fit."""
    return max(options.block_size, shape.block_tokens)


def _batch_tokens(shape: ModelShape, options: RuntimeOptions, device: Compute) -> int:
    """Tokens of the largest step."""
    wanted = options.max_batch_tokens or forecast.BATCH_TOKENS[device]
    return shape.step_tokens(wanted, options.max_model_len or shape.max_positions)


def _requests(shape: ModelShape, options: RuntimeOptions, kv_tokens: int, chunk_tokens: int) -> int:
    """Requests of the longest length that a cache holds at once."""
    longest = options.max_model_len or shape.longest_sequence(kv_tokens, chunk_tokens, shape.max_positions)
    return int(shape.requests(kv_tokens, longest, chunk_tokens)) if longest else 0


def dtype_of(
    facts: ModelFacts, options: RuntimeOptions, device: Compute, capability: tuple[int, int] = forecast.BFLOAT16
) -> str:
    """The type in which a model is computed: what the option's auto comes to. capability: of the card."""
    if options.dtype != "auto":
        return options.dtype
    return forecast.cuda_dtype(facts.shape.dtype, capability) if device == "cuda" else facts.cpu_dtype


def _fit(
    shape: ModelShape,
    options: RuntimeOptions,
    dtype: str,
    memory_bytes: int,
    *,
    device: Compute | None,
    drafter: DraftModelSize,
    copies_bytes: int,
) -> forecast.MemoryFit:
    """device: None leaves out what only a measurement knows, and requests the least cache."""
    longest = max(options.max_model_len - 1, _block_size(shape, options))
    return rank_forecast.fit(
        shape,
        options,
        dtype,
        memory_bytes,
        device=device,
        max_model_len=options.max_model_len if shape.keeps_nothing else longest,
        max_batch_tokens=_batch_tokens(shape, options, device) if device else 0,
        copies_bytes=copies_bytes,
        drafter=drafter,
    )


def _of_a_fixed_cache(
    facts: ModelFacts, options: RuntimeOptions, dtype: str, device: Compute, memory_bytes: int
) -> Prediction:
    """runtime.kvCacheTokens says how many tokens there are; whether they fit is then between weights and memory."""
    shape, drafter = facts.shape, _drafter(facts, options, dtype, device)
    block_size = _block_size(shape, options)
    tokens = -(-options.kv_cache_tokens // block_size) * block_size
    cached = dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    _, saved = shape.host_weights_bytes(dtype, options.quantization, options.weights_host_bytes)
    weights = shape.weights_bytes(dtype, options.quantization) - saved
    whole = forecast.RankPart(weights_bytes=weights, kv_bytes_per_token=shape.kv_bytes_per_token(cached))
    part, where = rank_forecast.part_of_rank(shape, options, dtype, memory_bytes), ""
    if part is not None:
        where, memory_bytes = rank_forecast.at_most(options), memory_bytes // options.sharing_ranks
    held = part or whole
    parts = {
        "the weights": held.weights_bytes,
        "the draft model": drafter.weights_bytes,
        f"a KV cache of {tokens:,} tokens": tokens * (held.kv_bytes_per_token + drafter.kv_bytes_per_token),
    }
    return Prediction(
        verdict="Fits" if sum(parts.values()) <= memory_bytes else "TooSmall",
        weights_bytes=weights,
        kv_tokens=tokens,
        requests=_requests(shape, options, tokens, _batch_tokens(shape, options, device)),
        message=f"{where}{forecast.sum_of(parts)}; there are {forecast.readable(memory_bytes)}",
    )
