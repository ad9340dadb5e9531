"""transformers as the judge: the same checkpoint, float32, one sequence at a time, no cache of keys and values."""

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, masking_utils
from transformers.utils import logging

from kvasir_api.cache_groups import LayerAttention

# Two tokens whose logits differ by less are a tie: either is right.
TIE = 1e-4


class Oracle:
    """Judges tokens and logits of one checkpoint.

    attentions: of each layer, in place of what config.json says; for families that take a mask by the layer's type.
    """

    def __init__(self, folder: Path, attentions: Sequence[LayerAttention] = ()) -> None:
        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self._attentions = tuple(attentions)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """(len(ids), vocab) float32."""
        tokens = torch.tensor([list(ids)])
        masks = self._masks(tokens) if self._attentions else None
        logits: Tensor = self._model(tokens, attention_mask=masks, use_cache=False).logits[0]
        return logits

    def _masks(self, tokens: Tensor) -> dict[str, Tensor | None]:
        """The library's own masks, one for each layer, under types of their own."""
        config = self._model.config
        config.layer_types = [f"layer {index}" for index in range(len(self._attentions))]
        given = {"inputs_embeds": self._model.get_input_embeddings()(tokens), "attention_mask": None}
        masks = dict[str, Tensor | None]()
        for name, attention in zip(config.layer_types, self._attentions, strict=True):
            if attention.kind == "state":  # which has no mask but that of padding
                masks[name] = None
                continue
            config.sliding_window = config.attention_chunk_size = attention.span
            make = {
                "full": masking_utils.create_causal_mask,
                "window": masking_utils.create_sliding_window_causal_mask,
                "chunked": masking_utils.create_chunked_causal_mask,
            }[attention.kind]
            masks[name] = make(config=config, past_key_values=None, **given)
        return masks

    def wrong_tokens(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """Indices of a greedy answer's tokens that are neither the best after those before them nor a tie with it."""
        logits = self.logits([*prompt, *answer])[len(prompt) - 1 : -1]
        given = logits.gather(1, torch.tensor(list(answer))[:, None])[:, 0]
        return (given < logits.amax(dim=1) - TIE).nonzero()[:, 0].tolist()


@functools.cache
def oracle_of(folder: Path) -> Oracle:
    """One oracle per checkpoint and test process."""
    return Oracle(folder)
