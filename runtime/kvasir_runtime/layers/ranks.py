"""A decoder in several processes: the one of rank 0 leads, the others compute what it computes, with their parts.

The leader is where plans are run and tokens are sampled. Before each pass it sends the batch, so that the others need
no rows, grammars or sampling, and nothing that depends on time is decided twice. Called by `load_model` and
`rank_worker`.
"""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final, NoReturn, Protocol

import msgspec
import torch
from torch import Tensor

from kvasir_runtime.kernels.collectives import CardCollectives, Collectives, StageCollectives
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import data_parallel, pipeline, rank_messages
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.expert_copies import ExpertCopies
from kvasir_runtime.layers.layer_offload import LayerOffload
from kvasir_runtime.layers.rank_messages import (
    CaptureGraph,
    Computation,
    CopyBlocks,
    EndBody,
    ForwardPass,
    HeadOf,
    NewCache,
    RankMessage,
    ReplayGraph,
)
from kvasir_runtime.layers.spec import DecoderSpec

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
        self.use(cache)
        with self._led(*rank_messages.forward_pass(batch, self._ranks)):
            return _forward(self, super().forward, batch, cache)

    def begins(self, cache: KvCache) -> bool:  # noqa: ARG002
        """With stages."""
        return self.spec.stage is not None

    def begin(self, batch: Batch, cache: KvCache, *, greedy: bool = False) -> None:  # noqa: ARG002
        """Compute the part of the first stage, and send it."""
        self.use(cache)
        begun = BegunPass(batch, pipeline.new_result(batch, self.spec, self.dtype))
        self._begun = (*self._begun, begun)
        # What the last stage cannot send would stop the stages before it, and this one with what it sends them.
        for one in self._begun[:-1]:
            if not self._stages.holds([other.result.nbytes for other in self._begun if other.output is None]):
                self._receive(one)
        with self._led(*rank_messages.forward_pass(batch, self._ranks)):
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
        (pairs,), shared = rank_messages.sent([torch.stack((sources, targets), dim=1)], self._ranks)
        with self._led(CopyBlocks(pairs), shared):
            super().copy_blocks(cache, *_copies(self, cache, sources, targets))

    def tell(self, message: CaptureGraph | EndBody | ReplayGraph) -> None:
        """Have the others capture or replay."""
        with self._led(message):
            pass

    @contextmanager
    def ends_group(self) -> Iterator[None]:
        """What the block raises ends the group: the others compute what this rank would leave half done."""
        try:
            yield
        except BaseException as error:
            self._ranks.abort(f"rank {self._ranks.rank}: {' '.join(str(error).split()) or type(error).__name__}")
            raise

    def use(self, cache: KvCache) -> None:
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
        return self._led(*rank_messages.head_of(hidden, self._ranks, greedy=greedy))

    def _receive(self, begun: BegunPass) -> ForwardOutput:
        """What a pass gives; those before it were received."""
        if begun.output is None:
            with self._led(None):
                begun.output = pipeline.received(begun.result, self._stages, begun.batch)
        return begun.output

    @contextmanager
    def _led(self, message: RankMessage | None, shared: tuple[Tensor, ...] = ()) -> Iterator[None]:
        """Send what the others compute during the block, None for what they know. Exchanges are counted, not named:
        after a failure within one computation, the next would get its numbers. shared: what goes from card to card.
        """
        with self.ends_group():
            if message is not None:
                self._ranks.broadcast(msgspec.msgpack.encode(message))
            for tensor in shared:
                assert isinstance(self._ranks, CardCollectives)
                self._ranks.share(tensor)
            yield


def decoder_of(
    spec: DecoderSpec,
    ops: Ops,
    tensors: MutableMapping[str, Weight],
    num_positions: int,
    offload: LayerOffload | None = None,
    copies: ExpertCopies | None = None,
) -> Decoder:
    """This rank's, with its copies of experts. tensors and the rest: as of `Decoder`."""
    if copies is not None:
        ops = replace(ops, moe=copies.builder(ops.moe))
    leads = ops.collectives is not None and ops.collectives.rank == 0
    model = (LeadingDecoder if leads else Decoder)(spec, ops, tensors, num_positions=num_positions, offload=offload)
    model.expert_copies = copies
    return model


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Enqueue it again."""


class Capturer(Protocol):
    """`runner.graphs.capture.GraphCapturer`, as followers use it."""

    def capture(self, body: Callable[[], tuple[Tensor, ...]]) -> Graph:
        """Run a body, then capture it."""


class Follower:
    """A rank behind the first, which computes its part of what the leader computes."""

    def __init__(self, decoder: Decoder, group: Collectives, allocate: Allocate, capturer: Capturer | None) -> None:
        self._decoder, self._group, self._allocate, self._capturer = decoder, group, allocate, capturer
        self._cache: KvCache | None = None
        self._graphs: dict[int, Graph] = {}
        self._messages: msgspec.msgpack.Decoder[RankMessage] = msgspec.msgpack.Decoder(RankMessage)

    def next(self) -> bool:
        """Take and obey the leader's next message. Whether it was no EndBody."""
        message = self._messages.decode(self._group.broadcast(b""))
        if isinstance(message, CaptureGraph):
            assert self._capturer is not None
            self._graphs[message.number] = self._capturer.capture(self._body)
        elif isinstance(message, ReplayGraph):
            self._graphs[message.number].replay()
        elif not isinstance(message, EndBody):
            self._compute(message)
        return not isinstance(message, EndBody)

    def _body(self) -> tuple[Tensor, ...]:
        while self.next():
            pass
        return ()

    def _compute(self, message: Computation) -> None:
        if isinstance(message, NewCache):
            self._cache = None  # before the next takes its place
            self._graphs.clear()
            self._cache = self._allocate(message)
        elif isinstance(message, HeadOf):
            if self._decoder.spec.is_first:  # where the head is
                size, dtype = self._decoder.spec.hidden_size, self._decoder.dtype
                hidden = rank_messages.hidden_of(message, self._group, size, dtype)
                _ = self._decoder.greedy_ids(hidden) if message.greedy else self._decoder.logits(hidden)
        elif self._cache is not None:
            _compute(self._decoder, self._group, self._cache, message)


@torch.inference_mode()
def follow(decoder: Decoder, group: Collectives, allocate: Allocate, capturer: Capturer | None = None) -> NoReturn:
    """Compute this rank's part of what the leader computes. capturer: None where the leader captures nothing.

    Raises RankLostError where another rank has ended, and what the operations raise.
    """
    follower = Follower(decoder, group, allocate, capturer)
    while True:
        follower.next()


def _compute(decoder: Decoder, group: Collectives, cache: KvCache, message: ForwardPass | CopyBlocks) -> None:
    if isinstance(message, CopyBlocks):
        (pairs,) = rank_messages.received([message.pairs], group)
        decoder.copy_blocks(cache, *_copies(decoder, cache, *pairs.unbind(1)))
        return
    batch = rank_messages.batch_of(message, group)
    if decoder.spec.stage is None:
        _forward(decoder, decoder.forward, batch, cache)
        return
    assert isinstance(group, StageCollectives)
    pipeline.forward(decoder.forward, decoder.spec, decoder.dtype, group, batch, cache)


def _forward(decoder: Decoder, compute: data_parallel.Compute, batch: Batch, cache: KvCache) -> ForwardOutput:
    """What this rank computes of a batch, by its decoder's own `forward`."""
    if decoder.expert_copies is not None:
        decoder.expert_copies.advance()
    return compute(batch, cache) if decoder.exchange is None else data_parallel.forward(compute, decoder, batch, cache)


def _copies(decoder: Decoder, cache: KvCache, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of blocks to copy, those that this rank has."""
    if decoder.exchange is None:
        return sources, targets
    return data_parallel.own_copies(sources, targets, decoder.spec.rank.index, cache.blocks.shape[0])
