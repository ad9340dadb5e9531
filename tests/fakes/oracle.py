"""transformers as the judge: the same checkpoint, float32, one sequence at a time, no cache of keys and values."""

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

# Two tokens whose logits differ by less are a tie: either is right.
TIE = 1e-4


class Oracle:
    """Judges tokens and logits of one checkpoint."""

    def __init__(self, folder: Path) -> None:
        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """(len(ids), vocab) float32."""
        logits: Tensor = self._model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return logits

    def wrong_tokens(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """Indices of a greedy answer's tokens that are neither the best after those before them nor a tie with it."""
        logits = self.logits([*prompt, *answer])[len(prompt) - 1 : -1]
        given = logits.gather(1, torch.tensor(list(answer))[:, None])[:, 0]
        return (given < logits.amax(dim=1) - TIE).nonzero()[:, 0].tolist()


@functools.cache
def oracle_of(folder: Path) -> Oracle:
    """One oracle per checkpoint and test process."""
    return Oracle(folder)
