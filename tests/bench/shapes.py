"""The models that benchmarks serve: random weights in shapes that people run, written anew where they are needed.

Every word of the workloads is one token. The greedy token is printable ASCII by itself, so that it streams at once and
no engine ends early; of sampled ones all but a few are. A large vocabulary is filled with words that no prompt holds.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fakes import checkpoints
from fakes.checkpoints import Shape
from kvasir_runtime.bench.workload import WORDS

SHAPES: Final = {
    # Llama, 131 million weights.
    "small": Shape(
        hidden_size=768,
        intermediate_size=3584,
        num_layers=12,
        num_heads=12,
        num_kv_heads=4,
        head_dim=64,
        vocab_size=8192,
        max_position_embeddings=8192,
        dtype=torch.bfloat16,
    ),
    # Qwen2.5-0.5B: 494 million weights, a large tied vocabulary.
    "medium": Shape(
        family="qwen2",
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=151_936,
        max_position_embeddings=8192,
        tied=True,
        std=0.02,
        dtype=torch.bfloat16,
    ),
    # Qwen3's way: heads of 128 that together are wider than the model, norms on queries and keys; 253 million weights.
    "wide": Shape(
        family="qwen3",
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=14,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=32_000,
        max_position_embeddings=8192,
        tied=True,
        std=0.02,
        dtype=torch.bfloat16,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one token costs. weights: read in a step and multiplied once per token, all but the input embedding.

    kv_width: elements of keys and values of one token in all layers; attention: multiplications and additions for each
    pair of a token and one that it sees; vocabulary: logits of one token.
    """

    weights: int
    kv_width: int
    attention: int
    vocabulary: int = 0


def work(shape: Shape) -> Work:
    """Counts that follow from the shape alone."""
    queries, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    layer = shape.hidden_size * (2 * queries + 2 * kv + 3 * shape.intermediate_size)
    return Work(
        weights=shape.num_layers * layer + shape.vocab_size * shape.hidden_size,
        kv_width=2 * kv * shape.num_layers,
        attention=4 * queries * shape.num_layers,
        vocabulary=shape.vocab_size,
    )


def written(folder: Path, shape: Shape) -> Path:
    """The checkpoint of a shape.

    Rows of tokens that must not be drawn are zero in the output layer: their logit of 0 never wins against thousands of
    others. Where that layer is the embedding too, those tokens look alike to the model, which changes no timing.
    """
    tokenizer = tokenizer_of(shape)
    checkpoints.write(folder, shape)
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = checkpoints.random_weights(shape)
    output = weights["model.embed_tokens.weight" if shape.tied else "lm_head.weight"]
    output[~drawable(tokenizer, shape)] = 0
    checkpoints.write_weights(folder, weights)
    return folder


def drawable(tokenizer: Tokenizer, shape: Shape) -> torch.Tensor:
    """(vocab,) bool: tokens that are printable ASCII by themselves."""
    found = torch.zeros(shape.vocab_size, dtype=torch.bool)
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token])
        found[token] = bool(text.isascii() and text.isprintable() and text.strip())
    return found


def tokenizer_of(shape: Shape) -> Tokenizer:
    """Knows every word of the workloads as one token, and has a text for every id."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(8192, shape.vocab_size),
        special_tokens=list(checkpoints.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS), *(f" {word}" for word in WORDS)] * 2, trainer)
    document = json.loads(tokenizer.to_str())
    vocabulary = document["model"]["vocab"]
    vocabulary |= {f"Ġ{token:06d}": token for token in range(tokenizer.get_vocab_size(), shape.vocab_size)}
    return Tokenizer.from_str(json.dumps(document))
