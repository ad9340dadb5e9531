"""The `/state` document: what a runtime pod says about its KV cache, queue and speed, and what a gateway says.

Written by the engine once a step and served on the `ops` port; read by the autoscaler, the endpoint picker and
dashboards. Readers ignore fields they do not know, because old and new pods live side by side, and a document that
cannot be decoded is no reading, never zero. Counted in whole blocks; tokens are blocks times block_size.
"""

from typing import Annotated, Literal

import msgspec

from kvasir_api.rank_state import MOST_RANKS, RankState
from kvasir_api.state_count import Count

SCHEMA = 1
Instance = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[!-~]*\Z")]
"""A name that readers put into their next request: printable and short, else the document is no reading."""
Phase = Literal["starting", "loading", "warming", "ready", "draining"]


class KvState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """KV cache in tokens and in bytes. pinned + cached + free = capacity, always, in both.

    pinned: referenced by live sequences. cached: evictable, kept for prefix hits. free: holds nothing.
    A token of capacity is the bytes of one token in every layer, where a model's layers form several cache groups too; a
    long sequence takes fewer than its length where layers see a window only.
    """

    capacity_tokens: Count = 0
    pinned_tokens: Count = 0
    cached_tokens: Count = 0
    free_tokens: Count = 0
    block_size: Count = 16
    capacity_bytes: Count = 0
    pinned_bytes: Count = 0
    cached_bytes: Count = 0
    free_bytes: Count = 0


class KvHostState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The second tier of the KV cache, on the host, in tokens. cached + free = capacity; all 0 without one.

    It holds copies, so its tokens come on top of those of `KvState`. Other replicas on the node may share it. Counters
    of this process since its start: stored_tokens were copied there, loaded_tokens came back, missed_tokens should have
    and were computed, fetched_tokens came from other replicas, and failed_fetches brought less than was asked for, or
    nothing, because a replica did not answer rightly. handed_over_prompts: of which another replica computed a part for
    this one; peer_prompts: that this one computed for another. handing_over: requests that wait now while another replica
    computes their prompts. prefetched_tokens of those fetched came from replicas that
    were leaving, before a request needed them. load_bytes_per_s, store_bytes_per_s, fetch_bytes_per_s: measured,
    0 until then.
    """

    capacity_tokens: Count = 0
    cached_tokens: Count = 0
    free_tokens: Count = 0
    stored_tokens: Count = 0
    loaded_tokens: Count = 0
    missed_tokens: Count = 0
    load_bytes_per_s: float = 0.0
    store_bytes_per_s: float = 0.0
    fetched_tokens: Count = 0
    failed_fetches: Count = 0
    fetch_bytes_per_s: float = 0.0
    handed_over_prompts: Count = 0
    peer_prompts: Count = 0
    handing_over: Count = 0
    prefetched_tokens: Count = 0


class RequestTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Counters since the process started; a reader takes differences and treats a decrease as a restart.

    arrivals: requests accepted. completions: requests ended for any reason but abort. kv_token_seconds: sum over ended
    requests of the integral of pinned tokens over time, so E[kv_token_seconds per request] is this over completions.
    uncached_prompt_tokens: prompt tokens that had to be computed, by arrival. prefix_hit_tokens of prefix_query_tokens
    prompt tokens were found in the prefix cache. invalid_outputs: requests that ended because the model's output was not
    finite. memory_failures: steps for which there was no memory. prefix_saved_s: seconds that computing the hits would have taken at the measured prefill rate. accepted_tokens of drafted_tokens that were drafted ahead were kept; 0 of an engine that drafts nothing.
    """

    arrivals: Count = 0
    completions: Count = 0
    aborts: Count = 0
    prompt_tokens: Count = 0
    uncached_prompt_tokens: Count = 0
    generation_tokens: Count = 0
    prefix_query_tokens: Count = 0
    prefix_hit_tokens: Count = 0
    preemptions: Count = 0
    prefix_saved_s: float = 0.0
    kv_token_seconds: float = 0.0
    invalid_outputs: Count = 0
    memory_failures: Count = 0
    drafted_tokens: Count = 0
    accepted_tokens: Count = 0


class ServedTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What clients got since the process started, as the API process counts it.

    answered: requests that ended, but for those whose client went away. failed: those of them that ended in an error of
    ours. ttft_s: sum of the seconds to the first token over first_tokens sequences.
    refused: HTTP requests that got 429, whether they had waited or not. retried: HTTP requests that were sent again, by
    the client's own header or the gateway's, refused or accepted; so refused less retried are those refused that no other try replaces.
    """

    answered: Count = 0
    failed: Count = 0
    ttft_s: float = 0.0
    first_tokens: Count = 0
    refused: Count = 0
    retried: Count = 0


class StartupSeconds(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Seconds of the start, 0 until they are over.

    process_s: starting the processes: imports, tokenizer. weights_s: fetching the model's files, or finding them. load_s:
    reading and placing the weights. warm_s: the first steps.
    """

    process_s: float = 0.0
    weights_s: float = 0.0
    load_s: float = 0.0
    warm_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All that was measured."""
        return self.process_s + self.weights_s + self.load_s + self.warm_s


class MeasuredRates(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Measured speed; 0 until something was measured.

    prefill_tokens_per_s: exponential mean over steps that were bound by prompt chunks.
    decode_step_s: exponential mean of the seconds of a step that computed only single tokens. decode_slope_s: seconds by
    which one more sequence makes such a step longer; 0 until steps of different sizes were measured.
    stall_fraction: of the time of steps that computed prompts beside single tokens, the share that the single tokens
    would not have taken alone, 0..1.
    """

    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0
    decode_slope_s: float = 0.0
    stall_fraction: float = 0.0


class TtftForecast(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a first token takes, how true such predictions were, and what was refused because of them.

    queue_s: predicted seconds to the first token of a request that arrives now behind all that wait and has nothing to
    compute; -1 where it is not known. ratios: actual by predicted seconds of the last requests that had to wait, oldest
    first, at most 200. low_ratio, high_ratio: their 0.1 and 0.9 quantiles, 0 without any. calibrated: there are enough,
    and they are close enough to one another, for a request to be refused by its prediction.
    refused: requests whose objective could not be met, since the process started. expired: requests that were
    refused while they waited, by an objective or for other tenants; they count as arrivals and aborts. rechecked: of these, those whose
    deadline has passed since. wrongly_refused: of these, those that could have been served in time, as is known by then.
    """

    queue_s: float = -1.0
    ratios: tuple[float, ...] = ()
    low_ratio: float = 0.0
    high_ratio: float = 0.0
    calibrated: bool = False
    refused: Count = 0
    expired: Count = 0
    rechecked: Count = 0
    wrongly_refused: Count = 0


class QueueBounds(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Up to what a request may wait; beyond it is answered 429. 0 for no bound, and from a release that reports none.

    requests: that wait for a place. tokens: prompt tokens of waiting requests that have to be computed. seconds: predicted
    to the first token, once predictions are calibrated. ttft_s: objective for the first token of requests that bring none.
    """

    requests: Count = 0
    tokens: Count = 0
    seconds: float = 0.0
    ttft_s: float = 0.0


class SpeculationState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens that are drafted ahead, as of the last steps that had any.

    drafter: as `--speculation` says. why: the reason where it is off though it is not to be, or where no draft would pay; empty otherwise.
    draft_tokens: mean of a sequence in a step with drafts. acceptance_fraction: of them those that were kept, 0..1.
    cached_answers: recent ones of all tenants that are drafted from; cached_tokens: their length, 12 bytes for each.
    undrafted_steps, text_steps, model_steps: since the start, of those that only decoded, by what drafted for them.
    """

    drafter: str = "off"
    why: str = ""
    draft_tokens: float = 0.0
    acceptance_fraction: float = 0.0
    cached_answers: Count = 0
    cached_tokens: Count = 0
    undrafted_steps: Count = 0
    text_steps: Count = 0
    model_steps: Count = 0


class DecodeTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Steps that computed one token for each of their sequences and nothing else, since the process started.

    seconds: of these steps together. rows: their sequences, so many tokens were decoded. kv_tokens: context that they read.
    Differences over steps give the mean step, from which a reader can tell what it should have taken.
    drafted_steps, drafted_seconds, drafted_rows: of steps with drafts the same, each as the steps of one token for each
    sequence that its tokens would have taken.
    """

    steps: Count = 0
    seconds: float = 0.0
    rows: Count = 0
    kv_tokens: Count = 0
    drafted_steps: float = 0.0
    drafted_seconds: float = 0.0
    drafted_rows: Count = 0

    @property
    def of_all(self) -> tuple[float, float, int]:
        """Steps, seconds and rows, with drafts and without."""
        return self.steps + self.drafted_steps, self.seconds + self.drafted_seconds, self.rows + self.drafted_rows


class PrefixDigest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which prefixes are in the KV cache, as a set of route hashes (`hashes.route_hashes`).

    sequence: changes of the set since the process started, one for each hash that came or went. entries, checksum: size
    of the set now, and the exclusive or of its hashes in hexadecimal. added, removed: hashes, one behind the other, by
    which the set differs from what it was at the change with the number `after`; of the whole set where that is -1.
    A document lists them for a reader that names `after`, else it is `sequence` and both are empty.
    by_key, by_header: the salts of the hashes follow from keys, and from names of tenants in that header where it is
    not empty and a request has it (`tenants`); where neither does, tenants share the cache.
    """

    by_key: bool = False
    by_header: str = ""
    sequence: Count = 0
    entries: Count = 0
    checksum: str = "0" * 16
    after: Count = 0
    added: bytes = b""
    removed: bytes = b""


class WorkTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the engine's steps did since the process started. seconds: in which a step was computed.

    flops, read_bytes: of these steps by the sizes of the model, as `roofline.StepWork` counts them; 0 where those are
    not known.
    """

    seconds: float = 0.0
    flops: float = 0.0
    read_bytes: float = 0.0


class RuntimeState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One snapshot of one runtime pod.

    step: number of the last engine step. sequence_number: of the engine's snapshot; of two documents of one instance the
    one with the larger number is newer. heartbeat_age_s: seconds since the engine last spoke, filled in when served.
    stalled_s: seconds of silence of an engine that does not keep the time it announced, 0 of one that does.
    waiting_uncached_tokens: prompt tokens of waiting requests that are neither in the prefix cache nor on the host.
    remaining_tokens: tokens that running sequences may still generate, by their bounds. expected_tokens: what running and
    waiting requests will probably still generate, a drain estimate. reused_tokens: resident tokens that prefix hits have
    found, which would have to be computed again elsewhere: what the cache is worth.
    prefixes: what prefix hits may find on the device.
    device, kernels: what really serves, for example cpu and reference. fallback: why slower kernels serve than the device
    has, empty when they are its own. message: why the phase is what it is. locked: why no client is let in whatever the
    phase is, empty when some are.
    download_bytes: size of what the model's files on the hub are fetched of, 0 where none are; downloaded_bytes: what of
    it is there.
    instance: names this process among all, also after a restart; ids of what only it holds begin with it. All counters,
    and all numbers of documents and changes, begin again with another instance.
    sealing_key: public key to which keys of continuation tokens are sealed for this process (`sealed_keys`), empty where
    it takes none. continuation_keys: digest of those that it has, empty for none. kv_transfer_port: where other replicas
    of the service fetch blocks, 0 for nowhere. kv_prefill: it computes prompts for them, and has them compute its own.
    ranks: the processes that compute the model, of node 0 all of them, of another node its own; empty where it is one.
    """

    schema: Count = SCHEMA
    role: Literal["serve"] = "serve"
    model: str = ""
    revision: str = ""
    instance: Instance = ""
    phase: Phase = "starting"
    progress_fraction: float = 0.0
    eta_s: float = -1.0
    message: str = ""
    download_bytes: Count = 0
    downloaded_bytes: Count = 0
    locked: str = ""
    step: Count = 0
    sequence_number: Count = 0
    heartbeat_age_s: float = 0.0
    stalled_s: float = 0.0
    kv: KvState = KvState()
    kv_host: KvHostState = KvHostState()
    running: Count = 0
    waiting: Count = 0
    waiting_uncached_tokens: Count = 0
    remaining_tokens: Count = 0
    expected_tokens: Count = 0
    reused_tokens: Count = 0
    max_sequences: Count = 0
    max_model_len: Count = 0
    totals: RequestTotals = RequestTotals()
    served: ServedTotals = ServedTotals()
    start: StartupSeconds = StartupSeconds()
    rates: MeasuredRates = MeasuredRates()
    decoded: DecodeTotals = DecodeTotals()
    speculation: SpeculationState = SpeculationState()
    work: WorkTotals = WorkTotals()
    ttft: TtftForecast = TtftForecast()
    queue: QueueBounds = QueueBounds()
    prefixes: PrefixDigest = PrefixDigest()
    device: str = ""
    kernels: str = ""
    fallback: str = ""
    sealing_key: str = ""
    continuation_keys: str = ""
    kv_transfer_port: Count = 0
    kv_prefill: bool = False
    ranks: Annotated[tuple[RankState, ...], msgspec.Meta(max_length=MOST_RANKS)] = ()


class ServiceDemand(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one gateway knows of one service: requests it holds, forwards and had to refuse (a counter).

    held_bytes: request bytes of held requests. last_request_age_s: seconds since the last request for it, -1 never.
    Counters, 0 from a release that has none: shed: requests for which there was neither a replica with room nor a place
    to wait, but for those that had been sent before. expired: held ones that were refused then. abandoned: held ones whose
    client left, or that another service answered. held_retried: requests that began to wait and had been sent before, by
    the client's own header or the relay. gateway: its name, filled in by the reader; without, no counter is compared.
    """

    namespace: str
    name: str
    gateway: str = ""
    held: Count = 0
    held_bytes: Count = 0
    inflight: Count = 0
    requests: Count = 0
    refused: Count = 0
    shed: Count = 0
    expired: Count = 0
    abandoned: Count = 0
    held_retried: Count = 0
    last_request_age_s: float = -1.0


class GatewayState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One snapshot of one gateway pod."""

    schema: Count = SCHEMA
    role: Literal["gateway"] = "gateway"
    services: tuple[ServiceDemand, ...] = ()


def restarted(before: RuntimeState, after: RuntimeState) -> bool:
    """Whether the process that wrote a document is another one than that of the document before, so that its counters
    began again. Pods of releases that name no instance are told by counters that decrease."""
    if before.instance and after.instance:
        return before.instance != after.instance
    old, new = before.totals, after.totals
    return new.arrivals < old.arrivals or new.completions < old.completions


def unchanged(before: RuntimeState, after: RuntimeState) -> bool:
    """Whether nothing has happened between two documents: they differ at most in their number and their age."""
    same = msgspec.structs.replace(
        after, sequence_number=before.sequence_number, heartbeat_age_s=before.heartbeat_age_s
    )
    return before == same


def encode(state: RuntimeState | GatewayState) -> bytes:
    """Compact JSON."""
    return msgspec.json.encode(state)


def decode(document: bytes) -> RuntimeState:
    """A runtime's document. Unknown fields are ignored; raises msgspec.ValidationError or DecodeError otherwise."""
    return msgspec.json.decode(document, type=RuntimeState)


def decode_gateway(document: bytes) -> GatewayState:
    """A gateway's document, with the errors of decode()."""
    return msgspec.json.decode(document, type=GatewayState)
