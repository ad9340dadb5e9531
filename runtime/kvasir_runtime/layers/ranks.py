"""A decoder in several processes: the one of rank 0 leads, the others compute what it computes, with their parts.

The leader is where plans are run and tokens are sampled. Before each pass it sends the batch, so that the others need
no rows, grammars or sampling, and nothing that depends on time is decided twice. Called by `load_model` and
`rank_worker`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec
import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.collectives import Collectives, StageCollectives
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers import data_parallel, pipeline
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.decoder import Decoder

Numbers = tuple[tuple[int, ...], bytes]
"""A tensor of int64, as shape and little-endian bytes."""


class NewCache(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute with a new cache of undefined content, in place of the one before. dtype: of torch, by name."""

    num_blocks: int
    block_size: int
    dtype: str


class ForwardPass(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`Decoder.forward` of a Batch. lengths: of its sequences, of the queries and of all that is known."""

    token_ids: Numbers
    positions: Numbers
    slots: Numbers
    tables: tuple[Numbers, ...]
    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    logit_rows: Numbers | None


class HeadOf(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`Decoder.logits`, or `greedy_ids`, of hidden states: their bytes in the model's type, and how many rows."""

    hidden: bytes
    rows: int
    greedy: bool


class CopyBlocks(msgspec.Struct, frozen=True, tag=True):
    """Blocks of the cache to copy: (copies, 2), source and target."""

    pairs: Numbers


RankMessage = NewCache | ForwardPass | HeadOf | CopyBlocks
Allocate = Callable[[NewCache], KvCache]
MOST_HEAD_BYTES: Final = 2 << 20
"""Of hidden states that are sent while passes are begun: half of the room for messages between ranks of a host."""


@dataclass(slots=True, eq=False)
class BegunPass:
    """A forward pass whose later stages compute. result: memory for what comes back. output: once it was received."""

    batch: Batch
    result: Tensor
    output: ForwardOutput | None = None


class LeadingDecoder(Decoder):
    """The part of rank 0, as a decoder of the whole model. Its methods are called by one thread.

    What one of them raises ends the group, so that `failure` is set: the others are in exchanges that this rank left.
    With stages several passes may be begun before the first is finished; they are finished in the same order.
    """

    _cache: tuple[int, int] = (0, 0)
    _begun: tuple[BegunPass, ...] = ()

    @property
    def failure(self) -> str:
        """Why the group was aborted."""
        return self._ranks.failure

    @property
    def _ranks(self) -> Collectives:
        assert self._ops.collectives is not None
        return self._ops.collectives

    @property
    def _stages(self) -> StageCollectives:
        assert isinstance(self._ranks, StageCollectives)
        return self._ranks

    def forward(self, batch: Batch, cache: KvCache) -> ForwardOutput:
        """Of all ranks; a cache that they do not know yet is made by them first. No pass may be begun."""
        if self.begins(cache):
            self.begin(batch, cache)
            return self.finish()
        self._use(cache)
        with self._led(_forward_pass(batch)):
            return _forward(self, super().forward, batch, cache)

    def begins(self, cache: KvCache) -> bool:  # noqa: ARG002
        """With stages."""
        return self.spec.stage is not None

    def begin(self, batch: Batch, cache: KvCache, *, greedy: bool = False) -> None:  # noqa: ARG002
        """Compute the part of the first stage, and send it."""
        self._use(cache)
        begun = BegunPass(batch, pipeline.new_result(batch, self.spec, self.dtype))
        self._begun = (*self._begun, begun)
        # What the last stage cannot send would stop the stages before it, and this one with what it sends them.
        for one in self._begun[:-1]:
            if not self._stages.holds([other.result.nbytes for other in self._begun if other.output is None]):
                self._receive(one)
        with self._led(_forward_pass(batch)):
            pipeline.forward(super().forward, self.spec, self.dtype, self._stages, batch, cache)

    def finish(self) -> ForwardOutput:
        """What the oldest pass that was begun gives."""
        oldest, *rest = self._begun
        self._begun = tuple(rest)
        return self._receive(oldest)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the whole vocabulary."""
        if self._group is None:
            return super().logits(hidden)
        with self._led_head(hidden, greedy=False):
            return super().logits(hidden)

    def greedy_ids(self, hidden: Tensor) -> Tensor:
        """Of the whole vocabulary."""
        if self._group is None:
            return super().greedy_ids(hidden)
        with self._led_head(hidden, greedy=True):
            return super().greedy_ids(hidden)

    def copy_blocks(self, cache: KvCache, sources: Tensor, targets: Tensor) -> None:
        """On all ranks."""
        with self._led(CopyBlocks(_numbers(torch.stack((sources, targets), dim=1)))):
            super().copy_blocks(cache, *_copies(self, cache, sources, targets))

    def _use(self, cache: KvCache) -> None:
        """The others make a cache that they do not know yet."""
        known = cache.blocks.data_ptr(), cache.blocks.shape[0]
        if known != self._cache:
            dtype = str(cache.dtype).removeprefix("torch.")
            with self._led(NewCache(num_blocks=cache.blocks.shape[0], block_size=cache.block_size, dtype=dtype)):
                self._cache = known

    def _led_head(self, hidden: Tensor, *, greedy: bool) -> AbstractContextManager[None]:
        """The others compute their parts of the head. What is sent waits where the last stage still sends a pass."""
        if hidden.nbytes > MOST_HEAD_BYTES:
            for one in self._begun:
                self._receive(one)
        return self._led(HeadOf(hidden=_bytes(hidden), rows=hidden.shape[0], greedy=greedy))

    def _receive(self, begun: BegunPass) -> ForwardOutput:
        """What a pass gives; those before it were received."""
        if begun.output is None:
            with self._led(None):
                begun.output = pipeline.received(begun.result, self._stages, begun.batch)
        return begun.output

    @contextmanager
    def _led(self, message: RankMessage | None) -> Iterator[None]:
        """Send what the others compute during the block, None for what they know. Exchanges are counted, not named:
        after a failure within one computation, the next would get its numbers.
        """
        encoded = b"" if message is None else msgspec.msgpack.encode(message)
        try:
            if encoded:
                self._ranks.broadcast(encoded)
            yield
        except BaseException as error:
            self._ranks.abort(f"rank {self._ranks.rank}: {' '.join(str(error).split()) or type(error).__name__}")
            raise


@torch.inference_mode()
def follow(decoder: Decoder, group: Collectives, allocate: Allocate) -> NoReturn:
    """Compute this rank's part of what the leader computes.

    Raises RankLostError where another rank has ended, and what the operations raise.
    """
    decoder_of: msgspec.msgpack.Decoder[RankMessage] = msgspec.msgpack.Decoder(RankMessage)
    cache: KvCache | None = None
    while True:
        message = decoder_of.decode(group.broadcast(b""))
        if isinstance(message, NewCache):
            cache = None  # before the next takes its place
            cache = allocate(message)
        elif isinstance(message, HeadOf):
            if decoder.spec.is_first:  # where the head is
                hidden = torch.frombuffer(bytearray(message.hidden), dtype=decoder.dtype).view(message.rows, -1)
                _ = decoder.greedy_ids(hidden) if message.greedy else decoder.logits(hidden)
        elif cache is not None:
            _compute(decoder, group, cache, message)


def _compute(decoder: Decoder, group: Collectives, cache: KvCache, message: ForwardPass | CopyBlocks) -> None:
    if isinstance(message, CopyBlocks):
        decoder.copy_blocks(cache, *_copies(decoder, cache, *_tensor(message.pairs).unbind(1)))
        return
    first, *others = (_tensor(table) for table in message.tables)
    metadata = AttentionMetadata(message.query_lens, message.kv_lens, first)
    batch = Batch(
        token_ids=_tensor(message.token_ids),
        positions=_tensor(message.positions),
        slots=_tensor(message.slots),
        attn_metadata=(metadata, *(metadata.with_tables(table) for table in others)),
        logit_rows=None if message.logit_rows is None else _tensor(message.logit_rows),
    )
    if decoder.spec.stage is None:
        _forward(decoder, decoder.forward, batch, cache)
        return
    assert isinstance(group, StageCollectives)
    pipeline.forward(decoder.forward, decoder.spec, decoder.dtype, group, batch, cache)


def _forward(decoder: Decoder, compute: data_parallel.Compute, batch: Batch, cache: KvCache) -> ForwardOutput:
    """What this rank computes of a batch, by its decoder's own `forward`."""
    return compute(batch, cache) if decoder.exchange is None else data_parallel.forward(compute, decoder, batch, cache)


def _copies(decoder: Decoder, cache: KvCache, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of blocks to copy, those that this rank has."""
    if decoder.exchange is None:
        return sources, targets
    return data_parallel.own_copies(sources, targets, decoder.spec.rank.index, cache.blocks.shape[0])


def _forward_pass(batch: Batch) -> ForwardPass:
    lengths = batch.attn_metadata[0]
    return ForwardPass(
        token_ids=_numbers(batch.token_ids),
        positions=_numbers(batch.positions),
        slots=_numbers(batch.slots),
        tables=tuple(_numbers(metadata.block_tables) for metadata in batch.attn_metadata),
        query_lens=tuple(lengths.query_lens),
        kv_lens=tuple(lengths.kv_lens),
        logit_rows=None if batch.logit_rows is None else _numbers(batch.logit_rows),
    )


def _numbers(tensor: Tensor) -> Numbers:
    return tuple(tensor.shape), tensor.cpu().numpy().astype("<i8", copy=False).tobytes()


def _tensor(numbers: Numbers) -> Tensor:
    shape, raw = numbers
    return torch.from_numpy(np.frombuffer(bytearray(raw), dtype=np.int64).reshape(shape))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()
