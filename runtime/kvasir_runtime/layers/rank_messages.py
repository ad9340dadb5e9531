"""What the rank that leads sends to the others, as messages, and the tensors in them. Called by `ranks`.

Where the host has what a step computes, its numbers are in the message. Ranks with a card each get a message of shapes,
and behind it the numbers from card to card in one tensor, so that the host of rank 0 need not wait for its card and a
captured graph has the transfer in it.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.collectives import CardCollectives, Collectives
from kvasir_runtime.layers.batch import Batch

Lengths = tuple[tuple[int, ...], tuple[int, ...]]
Numbers = tuple[tuple[int, ...], bytes]
"""A tensor of whole numbers, as shape and little-endian bytes of int64; without bytes it comes from rank 0's card."""


class NewCache(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute with a new cache of undefined content, in place of the one before. dtype: of torch, by name."""

    num_blocks: int
    block_size: int
    dtype: str


class ForwardPass(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`Decoder.forward` of a Batch.

    numbers: token_ids, positions, slots, then a table for each cache group, logit_rows where some are wanted, and
    starts and kv_lens where the lengths are on the card. lengths: of the sequences, of the queries and of all that is
    known, None where only the card knows them. longest_query: as of AttentionMetadata.
    """

    numbers: tuple[Numbers, ...]
    groups: int
    some_rows: bool
    lengths: Lengths | None
    longest_query: int


class HeadOf(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`Decoder.logits`, or `greedy_ids`, of hidden states: their bytes in the model's type, and how many rows. Without
    bytes they come from rank 0's card.
    """

    hidden: bytes
    rows: int
    greedy: bool


class CopyBlocks(msgspec.Struct, frozen=True, tag=True):
    """Blocks of the cache to copy: (copies, 2), source and target."""

    pairs: Numbers


class CaptureGraph(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Capture what the next messages say, up to EndBody. It comes twice: run first, then captured."""

    number: int


class EndBody(msgspec.Struct, frozen=True, tag=True):
    """The end of what is captured."""


class ReplayGraph(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute what was captured under this number."""

    number: int


Computation = NewCache | ForwardPass | HeadOf | CopyBlocks
RankMessage = Computation | CaptureGraph | EndBody | ReplayGraph


def forward_pass(batch: Batch, group: Collectives) -> tuple[ForwardPass, tuple[Tensor, ...]]:
    """A message about a batch, and the tensors that follow it from card to card."""
    lengths = batch.attn_metadata[0]
    tensors = [batch.token_ids, batch.positions, batch.slots]
    tensors += [metadata.block_tables for metadata in batch.attn_metadata]
    if batch.logit_rows is not None:
        tensors.append(batch.logit_rows)
    host = lengths.host_lengths
    if isinstance(group, CardCollectives):
        tensors += lengths.lengths()
    numbers, shared = sent(tensors, group)
    message = ForwardPass(
        numbers=numbers,
        groups=len(batch.attn_metadata),
        some_rows=batch.logit_rows is not None,
        lengths=None if host is None else (tuple(host[0]), tuple(host[1])),
        longest_query=lengths.longest_query,
    )
    return message, shared


def batch_of(message: ForwardPass, group: Collectives) -> Batch:
    """The batch of a message."""
    token_ids, positions, slots, *tensors = received(message.numbers, group)
    tables, tensors = tensors[: message.groups], tensors[message.groups :]
    logit_rows = tensors.pop(0) if message.some_rows else None
    if tensors:
        starts, kv_lens = (tensor.int() for tensor in tensors)
        metadata = AttentionMetadata.on_device(
            starts, kv_lens, tables[0], longest_query=message.longest_query, host_lens=message.lengths
        )
    else:
        assert message.lengths is not None
        metadata = AttentionMetadata(*message.lengths, tables[0])
    return Batch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        attn_metadata=(metadata, *(metadata.with_tables(table) for table in tables[1:])),
        logit_rows=logit_rows,
    )


def head_of(hidden: Tensor, group: Collectives, *, greedy: bool) -> tuple[HeadOf, tuple[Tensor, ...]]:
    """A message about the head of hidden states, and the tensors that follow it from card to card."""
    on_card = isinstance(group, CardCollectives)
    raw = b"" if on_card else hidden.contiguous().view(torch.uint8).numpy().tobytes()
    return HeadOf(hidden=raw, rows=hidden.shape[0], greedy=greedy), (hidden,) if on_card else ()


def hidden_of(message: HeadOf, group: Collectives, hidden_size: int, dtype: torch.dtype) -> Tensor:
    """(rows, hidden_size) of a message, in the model's type."""
    if isinstance(group, CardCollectives):
        return group.share(torch.empty(message.rows, hidden_size, dtype=dtype, device=group.device))
    return torch.frombuffer(bytearray(message.hidden), dtype=dtype).view(message.rows, -1)


def sent(tensors: Sequence[Tensor], group: Collectives) -> tuple[tuple[Numbers, ...], tuple[Tensor, ...]]:
    """Tensors of whole numbers below 2**31 for a message, and what follows it from card to card."""
    if not isinstance(group, CardCollectives):
        return tuple(_bytes(tensor) for tensor in tensors), ()
    return tuple((tuple(tensor.shape), b"") for tensor in tensors), (_packed(tensors),)


def received(numbers: Sequence[Numbers], group: Collectives) -> list[Tensor]:
    """Tensors of a message, int64; those that come from a card are there once it has computed so far."""
    if not isinstance(group, CardCollectives):
        return [_tensor(one) for one in numbers]
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape, _ in numbers]
    packed = group.share(torch.empty(sum(sizes), dtype=torch.int32, device=group.device)).long()
    return [part.view(shape) for part, (shape, _) in zip(packed.split(sizes), numbers, strict=True)]


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1).int() for tensor in tensors])


def _bytes(tensor: Tensor) -> Numbers:
    return tuple(tensor.shape), tensor.numpy().astype("<i8", copy=False).tobytes()


def _tensor(numbers: Numbers) -> Tensor:
    shape, raw = numbers
    return torch.from_numpy(np.frombuffer(bytearray(raw), dtype=np.int64).reshape(shape))
