"""Forbid what a row's grammar does not allow, in place, from one bit for each id.

    for r in rows with slots[r] >= 0, id in range(vocab):  m = masks[slots[r]]
        if id >= 32 * words or not m[id // 32] >> id % 32 & 1: logits[r, id] = -inf

logits: (rows, vocab) float32, contiguous in vocab
masks: (masks, words) int32, bit id % 32 of word id // 32 set where an id is allowed, as llguidance and xgrammar fill it
slots: (rows,) int64, which mask is a row's, -1 for rows without one, which stay as they are
Exact. Several rows may share a mask. Nothing is waited for, so that it may be part of a recorded step.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def reference(logits: Tensor, masks: Tensor, slots: Tensor) -> None:
    """The module docstring, on any device."""
    if not masks.shape[0]:
        return
    allowed = unpacked(masks, logits.shape[1])[slots.clamp(min=0)]
    logits.masked_fill_(~allowed & (slots >= 0).unsqueeze(1), float("-inf"))


def unpacked(masks: Tensor, vocab: int) -> Tensor:
    """(masks, words) int32 as (masks, vocab) bool; ids that have no bit are not allowed."""
    bits = torch.arange(32, dtype=torch.int32, device=masks.device)
    known = (masks.unsqueeze(2) >> bits & 1).flatten(1)[:, :vocab].bool()
    return torch.nn.functional.pad(known, (0, vocab - known.shape[1]))


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Vocabularies that end within a word and behind the last one, shared masks, rows without one."""
    for vocab, words, slots in ((17, 1, [0]), (333, 11, [1, -1, 0, 1]), (5000, 150, [-1, 0])):
        logits = torch.randn(len(slots), vocab, generator=generator)
        masks = torch.randint(-(1 << 31), 1 << 31, (2, words), generator=generator).int()
        yield logits, masks, torch.tensor(slots)
