"""Make tokens that were said already less likely, in place, as OpenAI and vLLM define it.

    for r in rows with slots[r] >= 0:  s = slots[r];  repetition, frequency, presence = strengths[s]
        for id in range(vocab):
            if counts[s, id] > 0 or in_prompt[s, id]:
                logits[r, id] = logits[r, id] / repetition if logits[r, id] > 0 else logits[r, id] * repetition
            logits[r, id] -= frequency * counts[s, id] + presence * (counts[s, id] > 0)

logits: (rows, vocab) float32, contiguous in vocab, -inf stays -inf
slots: (rows,) int64, where each row's state is kept, -1 for rows that ask for nothing, which stay as they are
counts: (slots, vocab) int32, of the answer alone; in_prompt: (slots, vocab) bool
strengths: (slots, 3) float32: repetition (above 0), frequency, presence
All of it stays on the device and nothing is waited for, so that it may be part of a recorded step.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def reference(logits: Tensor, slots: Tensor, counts: Tensor, in_prompt: Tensor, strengths: Tensor) -> None:
    """The module docstring, on any device, by copies of the rows' states."""
    if not counts.shape[0]:
        return
    kept, asking = slots.clamp(min=0), (slots >= 0).unsqueeze(1)
    part = logits.clone()
    penalise(part, counts[kept], in_prompt[kept], *strengths[kept].split(1, dim=1))
    logits.copy_(torch.where(asking, part, logits))


def penalise(
    logits: Tensor, counts: Tensor, in_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> None:
    """The same where each row has its state beside it: (rows, vocab), and strengths as (rows, 1) each."""
    said = counts > 0
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits.copy_(torch.where(said | in_prompt, scaled, logits))
    logits -= frequency * counts + presence * said


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Rows that ask and rows that do not, slots in any order, forbidden ids, strengths of both signs."""
    for rows, vocab, slots in ((1, 17, [0]), (4, 333, [2, -1, 0, -1]), (2, 5000, [-1, 1])):
        logits = torch.randn(rows, vocab, generator=generator) * 4
        logits[:, ::5] = float("-inf")
        counts = torch.randint(-3, 4, (3, vocab), generator=generator, dtype=torch.int32).clamp_(min=0)
        in_prompt = torch.rand(3, vocab, generator=generator) < 0.2
        strengths = torch.tensor([[1.3, 0.5, 0.25], [0.7, -1.0, 0.0], [1.0, 0.0, 2.0]])
        yield logits, torch.tensor(slots), counts, in_prompt, strengths
