"""How much is measured: the full grid for one card, or a tiny one that runs every line on a CPU in seconds."""

from dataclasses import dataclass
from typing import Final

import torch

from fakes.checkpoints import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """shape: of the model. decode: batch and context. prefill: tokens of a prompt. steps: those that count.

    crowds: clients, requests, prompt and answer of the loads that go through HTTP. prefix: tokens of the cached one.
    sweep: clients of the loads with prompts and answers of sweep_lengths. long_prompt: tokens of one alone; far_prefix:
    of one that is cached. pauses: streams and their context, prompts beside them and their tokens. crossover: tokens of
    products.
    """

    name: str
    shape: Shape
    dtype: str
    decode: tuple[tuple[int, int], ...]
    prefill: tuple[int, ...]
    prefill_repeats: int
    warm_steps: int
    steps: int
    prefix: int
    waste: tuple[int, int, int]  # requests, and the least and most tokens of their prompts
    crowds: tuple[tuple[int, int, int, int], ...]
    first_token: tuple[int, int]  # tokens of the prompt, requests
    sweep: tuple[int, ...]
    sweep_lengths: tuple[int, int]
    long_prompt: int
    far_prefix: int
    pauses: tuple[int, int, int, int]
    crossover: tuple[int, ...]
    max_model_len: int
    ceiling_bytes: int
    ceiling_square: int
    peer_context: int
    peer_requests: tuple[int, int, int]  # how many, and the least and most tokens of prompt and answer
    server_options: tuple[str, ...] = ()


LLAMA_8B: Final = Shape(
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128_256,
    max_position_embeddings=262_144,  # twice the model's, whose weights are random here: for the follow-up on 200,000
    dtype=torch.bfloat16,
    std=0.02,
)

FULL: Final = Sizes(
    name="full",
    shape=LLAMA_8B,
    dtype="bfloat16",
    decode=((1, 1024), (1, 8192), (16, 1024), (64, 1024), (16, 8192), (256, 1024), (64, 8192)),
    prefill=(128, 1024, 8192),
    prefill_repeats=5,
    warm_steps=20,
    steps=100,
    prefix=32_768,
    waste=(64, 600, 1400),
    crowds=((64, 384, 128, 128), (256, 256, 1000, 1000)),
    first_token=(128, 20),
    sweep=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    sweep_lengths=(128, 128),
    long_prompt=131_072,
    far_prefix=200_000,
    pauses=(16, 1024, 8, 8192),
    crossover=(1, 16, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096),
    max_model_len=34_816,
    ceiling_bytes=4 << 30,
    ceiling_square=8192,
    peer_context=1024,
    peer_requests=(256, 100, 1024),
)

DRY: Final = Sizes(
    name="dry",
    shape=Shape(max_position_embeddings=1024, vocab_size=512),
    dtype="float32",
    decode=((1, 16), (3, 24)),
    prefill=(16, 64),
    prefill_repeats=2,
    warm_steps=2,
    steps=4,
    prefix=128,
    waste=(3, 8, 40),
    crowds=((2, 4, 12, 4),),
    first_token=(12, 2),
    sweep=(1, 2),
    sweep_lengths=(12, 4),
    long_prompt=96,
    far_prefix=160,
    pauses=(2, 12, 2, 48),
    crossover=(1, 5),
    max_model_len=512,
    ceiling_bytes=1 << 20,
    ceiling_square=64,
    peer_context=16,
    peer_requests=(3, 4, 8),
    server_options=("--kv-cache-tokens", "4096", "--device", "cpu"),
)
"""Its figures mean nothing; a cell above its floor is void here as there."""
