"""Compares a model over the paged cache with the same model computed by transformers alone, before it is served.

What a model keeps between steps beside keys and values, or mixes between tokens elsewhere than in attention, would be
wrong without an error. Two texts are computed in one batch, in chunks and token by token, and every logit is compared
with those of each text computed at once, for each kind of token by itself. Called by `load_transformers`.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import kv_cache
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.transformers_decoder import TransformersDecoder

LENGTHS: Final = (28, 21)
"""Tokens of both texts."""
CHUNKS: Final = ((9, 5), (4, 2), (3, 4), (4, 2))
STEPS: Final = (*CHUNKS, *((1, 1),) * 8)
"""How many of each text's tokens a step computes."""
BLOCK_SIZE: Final = 8
NUM_BLOCKS: Final = 8
"""Of each cache group: one text has the even ones, the other the odd ones."""
_SEED: Final = 20
_MOST: Final = {torch.float32: 1e-3}
_MOST_OF_16_BITS: Final = 0.1
"""Difference of logits, as part of their spread, at the median token of a kind: sums in another order, rounded."""


def check(decoder: TransformersDecoder, reference: Sequence[Tensor], texts: Sequence[Tensor]) -> None:
    """reference: logits (tokens, vocab) of each text, `alone`. Raises ModelError where the decoder's are others."""
    spec, dtype = decoder.spec, reference[0].dtype
    groups = [group.layers for group in spec.cache_groups]
    layout = kv_cache.keys_and_values(block_size=BLOCK_SIZE, kv_heads=spec.num_kv_heads, row=spec.head_dim, dtype=dtype)
    cache = kv_cache.allocate(
        groups=groups,
        layouts=[layout] * spec.num_layers,
        num_blocks=NUM_BLOCKS * len(groups),
        block_size=BLOCK_SIZE,
        dtype=dtype,
        device=texts[0].device,
    )
    most, spread = _MOST.get(dtype, _MOST_OF_16_BITS), torch.cat([one.float() for one in reference]).std()
    for kind, differences in _by_kind(_computed(decoder, texts, cache), reference).items():
        part = float(differences.median() / spread)
        if not part <= most:
            raise ModelError(
                f"computed in chunks and in a batch its logits of {kind} differ by {part:.2g} of their spread from"
                f" those of the whole text (at most {most:g} is rounding): it keeps more between tokens than keys and"
                " values"
            )


def texts_of(vocab_size: int, device: torch.device) -> tuple[Tensor, ...]:
    """Random ids, the same in every start."""
    generator = torch.Generator().manual_seed(_SEED)
    return tuple(torch.randint(vocab_size, (length,), generator=generator).to(device) for length in LENGTHS)


def alone(model: Any, text: Tensor) -> Tensor:
    """(tokens, vocab): logits of a text at once, by a model with an attention of transformers."""
    logits: Tensor = model(input_ids=text[None], use_cache=False).logits
    return logits[0]


def _by_kind(steps: Sequence[Sequence[Tensor]], reference: Sequence[Tensor]) -> dict[str, Tensor]:
    """(tokens,) differences of logits, of each kind of token: a model may be wrong at few kinds alone."""
    counts = zip(*STEPS, strict=True)
    expected = zip(*(text.split(parts) for text, parts in zip(reference, counts, strict=True)), strict=True)
    found = [
        [(one.float() - other.float()).square().mean(dim=1).sqrt() for one, other in zip(step, wanted, strict=True)]
        for step, wanted in zip(steps, expected, strict=True)
    ]
    chunks = found[: len(CHUNKS)]
    return {
        "a first chunk": torch.cat(chunks[0]),
        "a later chunk": torch.cat([text for step in chunks[1:] for text in step]),
        "the first token of a later chunk": torch.cat([text[:1] for step in chunks[1:] for text in step]),
        "a single token": torch.cat([text for step in found[len(CHUNKS) :] for text in step]),
    }


def _computed(decoder: TransformersDecoder, texts: Sequence[Tensor], cache: KvCache) -> list[tuple[Tensor, ...]]:
    """For each step the logits of what it computed of each text."""
    device, size, done = texts[0].device, cache.block_size, [0, 0]
    tables = [
        torch.arange(group * NUM_BLOCKS, (group + 1) * NUM_BLOCKS, device=device).view(-1, 2).T.contiguous()
        for group in range(cache.num_groups)
    ]
    steps = []
    for counts in STEPS:
        ends = [first + count for first, count in zip(done, counts, strict=True)]
        parts = [torch.arange(first, end, device=device) for first, end in zip(done, ends, strict=True)]
        slots = [
            torch.cat([table[text, part // size] * size + part % size for text, part in enumerate(parts)])
            for table in tables
        ]
        batch = Batch(
            token_ids=torch.cat([text[part] for text, part in zip(texts, parts, strict=True)]),
            positions=torch.cat(parts),
            slots=torch.stack(slots),
            attn_metadata=tuple(AttentionMetadata(counts, ends, table) for table in tables),
            logit_rows=torch.arange(sum(counts), device=device).flip(0),  # a head that mixes rows has other neighbours
        )
        steps.append(decoder.logits_of(decoder.forward(batch, cache)).flip(0).split(counts))
        done = ends
    return steps
