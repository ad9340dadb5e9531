"""A model whose greedy answers copy what its prompts hold: behind each token comes one and the same, as in a chain.

Its layers compute as those of any model and add nothing, so that steps cost what they cost. The head has for each token
the embedding of the one before it in the chain. So a prompt with a part of the chain is a document whose text the
answer repeats, and one with other ids here and there is a text before an edit.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bench.shapes import SHAPES, tokenizer_of
from fakes import checkpoints

FIRST = 1024
"""The first id of the chain: those before are bytes and what a tokenizer needs."""


def chain(vocab_size: int) -> list[int]:
    """All ids from FIRST on in the order in which they follow one another, the first behind the last."""
    ids = list(range(FIRST, vocab_size))
    random.Random(0).shuffle(ids)
    return ids


def written(folder: Path, shape_name: str) -> Path:
    """The checkpoint, in a shape of `bench.shapes`."""
    shape = replace(SHAPES[shape_name], tied=False)
    checkpoints.write(folder, shape)
    tokenizer_of(shape).save(str(folder / "tokenizer.json"))
    weights = checkpoints.random_weights(shape)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
        elif "norm" in name:
            weight.fill_(1.0)
    embedding = torch.randn(shape.vocab_size, shape.hidden_size, generator=torch.Generator().manual_seed(1))
    weights["model.embed_tokens.weight"] = embedding.to(shape.dtype)
    head, ids = torch.zeros_like(embedding), torch.tensor(chain(shape.vocab_size))
    head[ids.roll(-1)] = embedding[ids]
    weights["lm_head.weight"] = head.to(shape.dtype)
    checkpoints.write_weights(folder, weights)
    return folder


def edit(ids: Sequence[int], start: int, count: int, seed: int) -> list[int]:
    """A text before an edit: the answer that follows its last id, with other ids in 1 of 25 places, and the id before
    the answer.
    """
    return [*_before(ids, start, count, 0.04, seed), ids[start - 1]]


def extract(ids: Sequence[int], start: int, count: int, seed: int) -> list[int]:
    """A document of other text that holds the answer in passages of 64 ids, in another order, and the id before it."""
    passages = [[ids[(start + at + place) % len(ids)] for place in range(64)] for at in range(0, count, 64)]
    chance = random.Random(seed)
    chance.shuffle(passages)
    other = [chance.choice(ids) for _ in range(len(passages) * 32)]
    parts = [part for at, passage in enumerate(passages) for part in (other[32 * at : 32 * at + 32], passage)]
    return [*(token for part in parts for token in part), ids[start - 1]]


def _before(ids: Sequence[int], start: int, count: int, changed: float, seed: int) -> list[int]:
    chance = random.Random(seed)
    text = [ids[(start + place) % len(ids)] for place in range(count)]
    return [chance.choice(ids) if chance.random() < changed else token for token in text]
