"""A runner without tensors that remembers in every slot which token was written there, and distrusts every plan.

It samples from what it reads back through the block table, so that a block given to two sequences, freed too early or
shared before it was computed changes the answer or fails at once.
"""

import struct
from array import array
from dataclasses import dataclass, field
from zlib import crc32

import msgspec

from fakes.host import FakeHost
from fakes.model import EOS, FakeModel
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_runtime.core.plan import Chunk, HostChanges, Join, SampledTokens, StepPlan, StepResults
from kvasir_runtime.core.speculation.speculation import MAX_DRAFTS
from kvasir_runtime.engine.interfaces import Grammars, Peers
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import EngineFacts, Logprobs


@dataclass(slots=True)
class Row:
    """What a real runner keeps in tensors."""

    join: Join
    tokens: list[int]
    tables: list[list[int]]
    computed: int
    pooled: list[int] = field(default_factory=list)
    forked: bool = False
    undecided: int = 0
    kept: int = 0
    """Tokens that are computed though the last one is planned again, for a sample that was deferred; 0 for none."""


@dataclass(slots=True, kw_only=True)
class FakeRunner:
    """fail_steps: steps whose collection raises, with fail_words if there are any.

    vector_size: of pooled vectors; 0 for the pooled tokens themselves. idle_work: pieces of work that wait for a moment
    without requests. late_every: about one in so many masks is late once; 0 for none.
    """

    model: FakeModel = field(default_factory=FakeModel)
    num_blocks: int = 64
    block_size: int = 4
    max_model_len: int = 256
    eos_token_ids: tuple[int, ...] = (EOS,)
    attentions: tuple[LayerAttention, ...] = (FULL,)
    max_rows: int = 256
    max_batch_tokens: int = 1 << 20
    fail_steps: frozenset[int] = frozenset()
    fail_words: str = ""
    failure: str = ""
    vector_size: int = 0
    idle_work: int = 0
    late_every: int = 0
    late: set[tuple[str, int]] = field(default_factory=set)
    rows: dict[int, Row] = field(default_factory=dict)
    cache: dict[int, int] = field(default_factory=dict)
    states: dict[int, tuple[int, ...]] = field(default_factory=dict)
    before: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    launched: list[StepPlan] = field(default_factory=list)
    in_flight: int = 0
    guided: dict[int, list[tuple[int, Row, int]]] = field(default_factory=dict)
    void: set[tuple[int, int]] = field(default_factory=set)
    grammars: Grammars | None = None
    host: FakeHost | None = None
    peers: Peers | None = None

    @property
    def facts(self) -> EngineFacts:
        """Of this runner as it is configured now."""
        return EngineFacts(
            device="cpu",
            kernels="fake",
            dtype="float32",
            weights_bytes=1000,
            kv_bytes_per_token=4,
            hidden_size=2,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_model_len=self.max_model_len,
            max_sequences=self.max_rows,
            max_batch_tokens=self.max_batch_tokens,
            eos_token_ids=self.eos_token_ids,
            host_blocks=0 if self.host is None else self.host.num_slots,
            attentions=self.attentions,
        )

    @property
    def hash_salt(self) -> bytes:
        return b""

    def host_changes(self) -> HostChanges | None:
        return None if self.host is None else self.host.changes()

    def read_block(self, block: int, group: int) -> tuple[int, ...] | None:
        """What a copy to the host reads."""
        if self.attentions[group].kind == "state":
            return self.states.get(block)
        slots = range(block * self.block_size, (block + 1) * self.block_size)
        content = tuple(self.cache.get(slot, -1) for slot in slots)
        return None if -1 in content else content

    def write_block(self, block: int, group: int, content: tuple[int, ...] | None) -> None:
        """What a copy from the host writes; before it, nothing that may be read is there."""
        if self.attentions[group].kind != "state":
            first = block * self.block_size
            self.cache.update(enumerate(content or (-1,) * self.block_size, first))
        elif content is not None:
            self.states[block] = content
        else:
            self.states.pop(block, None)

    def forget_host(self) -> None:
        if self.host is not None:
            self.host.forget()

    def launch(self, plan: StepPlan) -> StepResults:
        """Applies the plan in its order; the handle is the result itself."""
        assert plan.num_tokens <= self.max_batch_tokens
        num_samples = sum(1 + len(chunk.drafts) for chunk in plan.chunks if chunk.samples)
        assert num_samples <= max(self.max_rows, 1 + MAX_DRAFTS)
        if self.host is not None:
            self.host.submit(plan, self)
        elif plan.stores or plan.loads or plan.drops or plan.fetches:
            raise AssertionError("blocks are copied to or from a host that keeps none")
        assert len(plan.chunks) == len({chunk.row for chunk in plan.chunks})
        for row in plan.leaves:
            self.rows.pop(row, None)
        for join in plan.joins:
            self._join(join)
        self._fork(plan)
        for grow in plan.grows:
            self.rows[grow.row].tables[grow.group] += grow.blocks
        assert not {copy.target for copy in plan.copies} & {copy.source for copy in plan.copies}
        for copy in plan.copies:
            for offset in range(self.block_size):
                source = copy.source * self.block_size + offset
                self.cache[copy.target * self.block_size + offset] = self.cache.get(source, -1)
            self.states.pop(copy.target, None)
            if copy.source in self.states:
                self.states[copy.target] = self.states[copy.source]
        for insert in plan.inserts:
            assert insert.position == len(self.rows[insert.row].tokens), "inserted behind all that is known"
            self.rows[insert.row].tokens += insert.tokens
        for chunk in plan.chunks:
            self._write(chunk)
        self.launched.append(plan)
        self.in_flight += 1
        sampled = tuple(self._sampled(chunk) for chunk in plan.chunks if chunk.samples)
        scored = tuple(
            tuple(Logprobs(-float(position), 1) for position in range(*chunk.scores))
            for chunk in plan.chunks
            if chunk.scores[0] < chunk.scores[1]
        )
        self.guided[plan.step] = self._undecided(plan)
        pooled = tuple(vector for chunk in plan.chunks if (vector := self._pool(chunk)))
        return StepResults(step=plan.step, sampled=sampled, scored=scored, pooled=pooled)

    @property
    def has_idle_work(self) -> bool:
        """Whether any is left."""
        return self.idle_work > 0

    def do_idle_work(self) -> None:
        """One piece of work less."""
        assert not self.in_flight
        self.idle_work -= 1

    def use_profiler(self, profiler: StepProfiler) -> None:
        """It computes nothing whose time could be told."""

    def collect(self, handle: StepResults) -> StepResults:
        """In order of launch."""
        assert handle.step == self.launched[-self.in_flight].step
        self.in_flight -= 1
        if self.host is not None:
            handle = msgspec.structs.replace(handle, transfers=self.host.completed(self))
        if handle.step in self.fail_steps:
            raise RuntimeError(self.fail_words or f"step {handle.step} was told to fail")
        sampled = list(handle.sampled)
        for place, row, length in self.guided.pop(handle.step):
            if (handle.step, place) in self.void:
                sampled[place] = SampledTokens(sampled[place].row, ())
                continue
            if self._is_late(row, length):
                self._defer(row, length - len(sampled[place].tokens))
                sampled[place] = SampledTokens(sampled[place].row, (), deferred=True)
                self.void |= {(step, i) for step, those in self.guided.items() for i, one, _ in those if one is row}
                continue
            row.undecided -= 1
            if row.join.beams:
                continue
            forced = self.model.forced(row.tokens[:length])
            if any(forced):
                row.tokens[length:], row.undecided = forced.tokens, 0
                self.void |= {(step, i) for step, those in self.guided.items() for i, one, _ in those if one is row}
            tokens = (*sampled[place].tokens, *forced.tokens)
            sampled[place] = msgspec.structs.replace(
                sampled[place], tokens=tokens, ended=forced.ended, error=forced.error
            )
        return msgspec.structs.replace(handle, sampled=tuple(sampled))

    def _is_late(self, row: Row, length: int) -> bool:
        """Whether the mask for the token that would be number length is late, which it is once at most."""
        name = (row.join.request_id, length)
        if not self.late_every or name in self.late or crc32(repr(name).encode()) % self.late_every:
            return False
        self.late.add(name)
        return True

    def _defer(self, row: Row, known: int) -> None:
        """Go back to so many known tokens; what was launched behind them is not computed."""
        del row.tokens[known:]
        row.computed, row.kept, row.undecided = known - 1, known, 0
        for attention, table in zip(self.attentions, row.tables, strict=True):
            if attention.kind == "state":
                self.states[table[(known - 1) // self.block_size]] = tuple(row.tokens)

    def _undecided(self, plan: StepPlan) -> list[tuple[int, Row, int]]:
        """Those of the sampling chunks whose grammar says more once the token is known: place, row, known tokens."""
        sampling = [self.rows[chunk.row] for chunk in plan.chunks if chunk.samples]
        guided = [(i, row, len(row.tokens)) for i, row in enumerate(sampling) if row.join.sampling.grammar]
        for _, row, _ in guided:
            row.undecided += 1
        return guided

    def _join(self, join: Join) -> None:
        assert join.row not in self.rows, f"row {join.row} is taken"
        assert 0 <= join.row < self.max_rows
        assert join.computed_tokens % self.block_size == 0
        assert join.computed_tokens < len(join.tokens)
        assert len(join.tables) == len(self.attentions)
        self.rows[join.row] = Row(join, list(join.tokens), [list(table) for table in join.tables], join.computed_tokens)

    def _fork(self, plan: StepPlan) -> None:
        before = dict(self.rows)
        for fork in plan.forks:
            source = before[fork.source]
            assert 0 <= fork.row < self.max_rows
            assert fork.position == source.computed, "everything before the fork is computed"
            self.rows[fork.row] = Row(
                source.join,
                [*source.tokens[: fork.position], *fork.tokens],
                [table[: fork.kept_blocks] for table in source.tables],
                source.computed,
                forked=True,
            )

    def _write(self, chunk: Chunk) -> None:
        row = self.rows[chunk.row]
        assert chunk.num_tokens > 0
        assert chunk.start == row.computed, "a chunk begins where the last one ended"
        assert row.undecided <= 1, "a guided row waits for all tokens but its last"
        end = chunk.start + chunk.num_tokens
        known = end - len(chunk.drafts)
        assert known <= len(row.tokens)
        assert chunk.samples == (known == len(row.tokens) and row.join.pooling is None)
        assert not chunk.drafts or chunk.samples, "drafts go with the last token"
        assert not chunk.drafts or self._has_states or known == chunk.start + 1, "and with no other"
        self.before.pop(chunk.row, None)
        if chunk.drafts:
            self.before[chunk.row] = dict(self.states)
        row.tokens += chunk.drafts
        start, row.kept = max(chunk.start, row.kept), 0
        for group, attention in enumerate(self.attentions):
            if attention.kind == "state":
                if start < end:
                    self._write_state(row, group, start, end)
                continue
            for position in range(start, end):
                block = row.tables[group][position // self.block_size]
                self._check_alone(row, block)
                self.cache[block * self.block_size + position % self.block_size] = row.tokens[position]
            self._check_seen(row, group, attention.first_seen(chunk.start), end)
        row.computed = end

    def _check_alone(self, row: Row, block: int) -> None:
        """Beams that are not continued have given up their blocks before a plan says what becomes of their rows, and
        what a window left may be another's although a table still names it.
        """
        assert block >= 0, "a block is written that is not there"
        assert self.host is None or block not in self.host.touched, f"block {block} is written while it is copied"
        holders = sum(
            self._needed(other, group).count(block)
            for other in self.rows.values()
            if not other.forked
            for group in range(len(self.attentions))
        )
        assert holders + row.forked == 1, f"block {block} is written while {holders} rows hold it"

    def _needed(self, row: Row, group: int) -> list[int]:
        """Blocks of a row that tokens to come still need."""
        return row.tables[group][self.attentions[group].first_seen(row.computed) // self.block_size :]

    def _check_seen(self, row: Row, group: int, first: int, end: int) -> None:
        table, size = row.tables[group], self.block_size
        places = (table[position // size] * size + position % size for position in range(first, end))
        context = [self.cache.get(place, -1) for place in places]
        assert context == row.tokens[first:end], f"the cache of {row.join.request_id} does not hold its tokens"

    def _write_state(self, row: Row, group: int, start: int, end: int) -> None:
        """A state is all tokens that went into it: read as of the token before, written as of the last one."""
        table = row.tables[group]
        if start:
            assert self.states.get(table[(start - 1) // self.block_size]) == tuple(row.tokens[:start])
        self._check_alone(row, table[(end - 1) // self.block_size])
        self.states[table[(end - 1) // self.block_size]] = tuple(row.tokens[:end])

    def _pool(self, chunk: Chunk) -> bytes:
        """What the cache holds at the pooled positions once they are complete, a float32 each; else nothing."""
        row = self.rows[chunk.row]
        if chunk.pools[0] < chunk.pools[1]:
            assert chunk.start <= chunk.pools[0]
            assert chunk.pools[1] <= row.computed
            row.pooled += row.tokens[slice(*chunk.pools)]
        if row.join.pooling is None or row.computed != len(row.tokens):
            return b""
        if self.vector_size:
            size = len(row.join.pooling.token_ids) or self.vector_size
            return array("f", (sum(row.pooled) % (7 + place) - 3.0 for place in range(size))).tobytes()
        return struct.pack(f"<{len(row.pooled)}f", *row.pooled)

    def _sampled(self, chunk: Chunk) -> SampledTokens:
        row = self.rows[chunk.row]
        said = row.join.sampling.logprobs
        known = chunk.start + chunk.num_tokens - len(chunk.drafts)
        tokens, likeliest = [], []
        for place in range(len(chunk.drafts) + 1):
            del row.tokens[known + place :]
            row.computed = known + place
            if said > 0:
                likeliest.append(self.model.likeliest(row.tokens, said))
            tokens.append(self._sample(chunk, chunk.min_tokens_left - place))
            forces = row.join.sampling.grammar is not None and any(self.model.forced(row.tokens))
            if forces or tokens[-1:] != list(chunk.drafts[place : place + 1]):
                break
        if self._has_states and len(tokens) <= len(chunk.drafts):
            row.computed = chunk.start
            for group, attention in enumerate(self.attentions):
                block = row.tables[group][(chunk.start - 1) // self.block_size]
                if attention.kind == "state" and chunk.start:
                    self.states[block] = self.before[chunk.row][block]
        return SampledTokens(chunk.row, tuple(tokens), tuple(likeliest), accepted=len(tokens) - 1)

    @property
    def _has_states(self) -> bool:
        return any(attention.kind == "state" for attention in self.attentions)

    def _sample(self, chunk: Chunk, min_tokens_left: int) -> int:
        row = self.rows[chunk.row]
        assert row.computed == len(row.tokens)
        context = list(row.tokens)  # which every group was found to hold
        sampling = row.join.sampling
        forbidden = {*self.eos_token_ids, *sampling.stop_token_ids} if min_tokens_left > 0 else ()
        seed = sampling.seed if sampling.temperature > 0 else 0
        token = self.model.next_token(context, seed, forbidden)
        row.tokens.append(token)
        return token
