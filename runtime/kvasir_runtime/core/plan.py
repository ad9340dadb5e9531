"""One step of the engine as data: what the scheduler decides and what the runner answers.

A plan is a delta to the runner's rows, serialisable, so that it can be sent to every rank, recorded and replayed.
The runner owns the rows: token ids, block tables, sampling parameters and computed lengths live there between steps,
and sampled ids are appended to a row by the runner itself, so a plan never has to carry them.
"""

from typing import Annotated, Final, Literal

import msgspec

from kvasir_runtime.wire import Logprobs, PoolingConfig, SamplingConfig

HiddenOf = Literal["last", "cls", "mean"]


def hidden_of(pooling: PoolingConfig) -> HiddenOf:
    """Which hidden states of a prompt are pooled."""
    return pooling.head_of if pooling.kind == "labels" or pooling.kind == "tokens" else pooling.kind


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence takes a row. tokens are all ids known when it is (re-)admitted: the prompt, and after a preemption
    what was generated so far. tables: for each cache group the blocks of its first positions, -1 where no position that
    is computed from now on needs one; computed_tokens are already in the cache (prefix hits), a multiple of the block
    size and fewer than all. Blocks are numbered from 0 to num_blocks - 1; a block for padding, if the runner requires
    one, comes on top. prompt_tokens is the length of the original prompt. beams: forks name what follows the row, of
    what is reported as most likely; its samples have no effect. root: parent of its first block's hash, so that what a
    draft model has read is shared as these blocks are.
    """

    row: int
    request_id: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    computed_tokens: int
    tables: tuple[tuple[int, ...], ...]
    sampling: SamplingConfig
    pooling: PoolingConfig | None = None
    beams: bool = False
    root: bytes = b""


class Grow(msgspec.Struct, frozen=True):
    """Blocks appended to the block table of a row in one cache group; -1 as in `Join`."""

    row: int
    blocks: tuple[int, ...]
    group: int = 0


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A row becomes a continuation of another, or of itself; it need not be joined before.

    It takes over everything of source as it was before all forks of the plan, but for its tokens from position on,
    which are replaced by tokens, and its block tables, which are the first kept_blocks columns of source's. What a grow
    of the plan appends to the row comes behind them.
    """

    row: int
    source: int
    position: int
    tokens: tuple[int, ...]
    kept_blocks: int


UNDRAFTED: Final = -1
"""In the places of drafts that the runner's draft model makes when it launches the plan."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Compute positions start .. start + num_tokens of a row. samples: the last of them is the last known token (known
    to the runner by then, even if it is still in flight), so the logits of it give the next one.

    min_tokens_left > 0 forbids EOS (also where ignore_eos) and stop ids. At most one chunk a row and plan.
    drafts: ids that are guessed to follow the last known token, computed as the last of num_tokens. The chunk samples
    behind each of them too, and the samples up to the first that is not the guess count. A runner with a draft model
    takes other ids in the places of `UNDRAFTED` ones, or fewer. Where a layer has a state and not all are right, the
    state stays as it was before the chunk, which is then computed again.
    scores: the tokens at positions from .. to (not included) get their logprobs; each is given by the
    position before it, which this chunk computes.
    pools: the hidden states of positions from .. to (not included), all of this chunk, go into the row's vector; it is
    complete, and a result of the plan, where that is the end of the prompt.
    """

    row: int
    start: int
    num_tokens: int
    samples: bool
    min_tokens_left: int = 0
    drafts: tuple[int, ...] = ()
    scores: tuple[int, int] = (0, 0)
    pools: tuple[int, int] = (0, 0)

    @property
    def num_undrafted(self) -> int:
        """Drafts that the runner's draft model is to make."""
        return len(self.drafts) if self.drafts[:1] == (UNDRAFTED,) else 0


class Insert(msgspec.Struct, frozen=True):
    """Ids that come from outside become known behind those of a row, from position on; they are computed later."""

    row: int
    position: int
    tokens: tuple[int, ...]


class BlockCopy(msgspec.Struct, frozen=True):
    """Copy the contents of one block to another before anything is computed."""

    source: int
    target: int


class BlockStore(msgspec.Struct, frozen=True):
    """Keep a copy of a full, computed block on the host under a key; where it is there already, keep it longer.

    key: of 33 bytes, the block's hash and behind it its cache group.
    """

    block: int
    key: bytes


class BlockLoad(msgspec.Struct, frozen=True):
    """Copy what the host holds under a key to a block of undefined content."""

    key: bytes
    block: int


class PeerBlock(msgspec.Struct, frozen=True):
    """A block to be fetched from another replica. column: of the table, from 0. key: as of `BlockStore`."""

    column: int
    key: bytes


class PeerPrefill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose prompt another replica is to compute, as in `EngineRequest`."""

    tenant: Annotated[str, msgspec.Meta(max_length=256)] = ""
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 1.0
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)] = 0


class BlockFetch(msgspec.Struct, frozen=True, kw_only=True):
    """Fetch from another replica to the host what it holds of some blocks, within so many seconds.

    number: names the fetch in results. peer: IP address and port. tokens: ids of all columns from the first on, as
    little-endian uint32, and salt that of the request: a replica's own hashes of the blocks follow from them and from
    its own secret. prefill: the peer computes them first, and gives each block when it has it; None for what it holds.
    """

    number: int
    peer: str
    within_s: float
    salt: bytes
    tokens: bytes
    blocks: tuple[PeerBlock, ...]
    prefill: PeerPrefill | None = None


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One step. Applied in this order: leaves, joins, forks, grows, copies, inserts, then all chunks in one pass.

    stores and loads run beside the steps, in order: no chunk of this plan or a later one writes their blocks or reads
    what is loaded before results report them done. fetches end in any order, whenever results report them, and hold
    nothing on the device; of cancels, numbers of earlier ones, no request needs the rest. A plan may consist of these
    alone, or be empty in order to learn of their end. drops: keys that the host must not hold any more; those that
    earlier plans store are stored first.
    drafter_follows: a draft model, if there is one, computes the prompts of these chunks too.

    A row that leaves may be joined again in the same plan, while an earlier plan that sampled for it is still in
    flight, but over stages: results belong to the plan, not to the holder of the row when they are collected. After a
    failed step every row leaves, so a leave of a row that is not held is ignored.
    """

    step: int
    leaves: tuple[int, ...] = ()
    joins: tuple[Join, ...] = ()
    forks: tuple[Fork, ...] = ()
    grows: tuple[Grow, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    inserts: tuple[Insert, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    stores: tuple[BlockStore, ...] = ()
    loads: tuple[BlockLoad, ...] = ()
    fetches: tuple[BlockFetch, ...] = ()
    cancels: tuple[int, ...] = ()
    drops: tuple[bytes, ...] = ()
    drafter_follows: bool = False

    @property
    def num_tokens(self) -> int:
        """Query tokens of the forward pass."""
        return sum(chunk.num_tokens for chunk in self.chunks)


class SampledTokens(msgspec.Struct, frozen=True):
    """Tokens that one sampling chunk gave, in order: one, and those that a grammar forces after it, which the runner
    knows and has not computed; or, of a chunk with n drafts, the first i of them, which are computed, and one more, for
    some i from 0 to n, and again what a grammar forces after it. accepted: this i. logprobs: one each, or none; of a
    beam with a grammar, top has what it allows alone.

    Samples of the sequence in later plans that were launched by then bring no tokens: they were drawn for places that
    forced tokens took. ended: the grammar is complete, so nothing may follow; then there may be no tokens. error: why
    the sequence, and it alone, cannot go on after these tokens. invalid: the model's output for it is not finite, so
    there are no tokens. deferred: nothing was drawn, since the mask of a grammar was not ready; later samples that were
    launched by then bring nothing either, and the last known token is planned again, to draw behind it. undrafted: of n
    drafts those that the runner's draft model did not make.
    """

    row: int
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()
    ended: bool = False
    error: str = ""
    invalid: bool = False
    deferred: bool = False
    undrafted: int = 0
    accepted: int = 0


class FetchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A fetch that ended. keys: of blocks that the host holds now by it. seconds: in which they came.

    failed: the peer did not give a whole answer in time.
    """

    number: int
    keys: tuple[bytes, ...] = ()
    seconds: float = 0.0
    failed: bool = False


class TransferResults(msgspec.Struct, frozen=True, kw_only=True):
    """Copies between device and host that ended since the last results: all those of plans up to step through.

    loaded: blocks that now hold what their loads named; the others could not be loaded. num_stored: blocks copied to
    the host. load_s, store_s: seconds in which these were copied. fetched: all fetches that ended, whatever their step.
    """

    through: int
    loaded: tuple[int, ...] = ()
    num_stored: int = 0
    load_s: float = 0.0
    store_s: float = 0.0
    fetched: tuple[FetchResult, ...] = ()


class HostChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of blocks that the host holds now and did not, and the reverse. reset: of those before it holds none."""

    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    reset: bool = False


class StepResults(msgspec.Struct, frozen=True, kw_only=True):
    """What the runner collected for a plan: one entry per chunk with samples, in the order of the chunks.

    scored: for each chunk with scores, in their order, the logprobs of those tokens; NaN where the model's output is
    not finite.
    pooled: for each chunk that completes a vector, in their order, the vector as `EngineOutput.pooled` has it; empty
    where it is not finite.
    transfers: None where the host keeps no blocks.
    """

    step: int
    sampled: tuple[SampledTokens, ...]
    scored: tuple[tuple[Logprobs, ...], ...] = ()
    pooled: tuple[bytes, ...] = ()
    transfers: TransferResults | None = None


class StepFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a step that has no results. message: for the requests that end because of it.

    step: its number, 0 where it failed before its launch. lacks_memory: there was none for it. transfers: of plans
    behind it, which are given up too.
    """

    message: str
    step: int = 0
    lacks_memory: bool = False
    transfers: tuple[TransferResults, ...] = ()
