"""Make tokens that were said already less likely, in place, as OpenAI and vLLM define it.

    for r, id in rows, range(vocab):
        if counts[r, id] > 0 or in_prompt[r, id]:
            logits[r, id] = logits[r, id] / repetition[r] if logits[r, id] > 0 else logits[r, id] * repetition[r]
        logits[r, id] -= frequency[r] * counts[r, id] + presence[r] * (counts[r, id] > 0)

logits: (rows, vocab) float32, -inf stays -inf; counts: (rows, vocab) int32, of the answer alone
in_prompt: (rows, vocab) bool; repetition (above 0), frequency, presence: (rows, 1) float32
Called by the runner for rows that ask for it.
"""

import torch
from torch import Tensor


def penalise(
    logits: Tensor, counts: Tensor, in_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> None:
    """The module docstring, on any device."""
    said = counts > 0
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits.copy_(torch.where(said | in_prompt, scaled, logits))
    logits -= frequency * counts + presence * said
