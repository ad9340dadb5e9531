"""Sequences and tokens that the same KV cache holds with and without freeing what a window has left.

python -m bench.windows prints docs/benchmarks/windows.md: first arithmetic for models that people run, then a run of a
tiny Gemma 3 with real plans, blocks and attention. No timing: the numbers do not depend on the machine.
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fakes import checkpoints
from fakes.by_hand import runner_of
from fakes.checkpoints import Shape
from kvasir_api import cache_groups, layer_types
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.wire import EngineRequest, SamplingConfig

BLOCK_SIZE = 16
CACHE_BYTES = 16 << 30
CHUNK_TOKENS = 2048
LENGTHS = (8192, 32_768, 131_072)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model by the part of its config.json that the cache depends on."""

    name: str
    family: str
    layers: int
    kv_heads: int
    head_dim: int
    window: int
    longest: int


MODELS = (
    Served(name="Mistral 7B v0.1", family="mistral", layers=32, kv_heads=8, head_dim=128, window=4096, longest=32_768),
    Served(name="Gemma 2 9B", family="gemma2", layers=42, kv_heads=8, head_dim=256, window=4096, longest=8192),
    Served(name="Gemma 3 1B", family="gemma3_text", layers=26, kv_heads=1, head_dim=256, window=512, longest=32_768),
    Served(name="Gemma 3 12B", family="gemma3_text", layers=48, kv_heads=8, head_dim=256, window=1024, longest=131_072),
    Served(
        name="Gemma 3 27B", family="gemma3_text", layers=62, kv_heads=16, head_dim=128, window=1024, longest=131_072
    ),
)


def sequences(model: Served, num_tokens: int) -> tuple[int, int]:
    """Sequences of so many tokens that CACHE_BYTES hold in bfloat16: with every token kept, and as the engine does.

    One of them computes a chunk of its prompt meanwhile, the others decode.
    """
    row = 2 * model.kv_heads * model.head_dim * 2
    before = CACHE_BYTES // (num_tokens * model.layers * row)
    groups = cache_groups.group_layers(layer_types.attentions(model.family, model.layers, sliding_window=model.window))
    attentions = [group.attention for group in groups]
    num_blocks = CACHE_BYTES // (max(len(group.layers) for group in groups) * row * BLOCK_SIZE)
    most, held = (
        cache_groups.blocks_of_sequence(attentions, num_tokens, block_size=BLOCK_SIZE, chunk_tokens=chunk)
        for chunk in (CHUNK_TOKENS, 1)
    )
    return before, (num_blocks - most + held) // held if num_blocks >= most else 0


def run(folder: Path, attentions: Sequence[LayerAttention] | None, *, num_prompts: int) -> tuple[int, int, int]:
    """Requests that ran at once and their tokens at most, and preemptions, of a tiny Gemma 3 with a small cache.

    attentions: what the scheduler takes the groups for, None for what they are.
    """
    runner = runner_of(folder, num_blocks=160, block_size=BLOCK_SIZE, max_sequences=num_prompts)
    facts = runner.facts
    limits = Limits(
        num_blocks=facts.num_blocks,
        block_size=facts.block_size,
        max_batch_tokens=256,
        max_sequences=facts.max_sequences,
        max_model_len=facts.max_model_len,
        attentions=facts.attentions if attentions is None else tuple(attentions) * len(facts.attentions),
    )
    scheduler, chooser = Scheduler(limits), random.Random(0)
    for number in range(num_prompts):
        prompt = tuple(chooser.choices(range(3, 320), k=900))
        sampling = SamplingConfig(temperature=0.0, max_tokens=200, ignore_eos=True)
        scheduler.submit(EngineRequest(request_id=str(number), prompt=prompt, sampling=sampling), 0.0)
    most_requests = most_tokens = preemptions = 0
    lengths: dict[int, int] = {}
    while (plan := scheduler.plan(0.0)) is not None:
        for row in plan.leaves:
            lengths.pop(row, None)
        lengths |= {chunk.row: chunk.start + chunk.num_tokens for chunk in plan.chunks}
        preemptions += len(plan.joins)
        most_requests, most_tokens = max(most_requests, len(lengths)), max(most_tokens, sum(lengths.values()))
        scheduler.commit(runner.collect(runner.launch(plan)), 0.0)
    return most_requests, most_tokens, preemptions - num_prompts


def page() -> str:
    """The whole page as Markdown."""
    lines = [
        "# What windows leave free",
        "",
        f"Sequences in a KV cache of {CACHE_BYTES >> 30} GiB in bfloat16, blocks of {BLOCK_SIZE} tokens, one sequence",
        f"computing a chunk of {CHUNK_TOKENS:,} tokens of its prompt. *Before* every layer kept every token; *now* a",
        "layer with a window keeps what the window sees, and padding of unequal groups counts. Arithmetic of",
        "`kvasir_api.cache_groups`, which the scheduler and the forecast use.",
        "",
        "| model | layers with a window | " + " | ".join(f"{length:,} tokens" for length in LENGTHS) + " |",
        "|---|---|" + "---|" * len(LENGTHS),
    ]
    for model in MODELS:
        attentions = layer_types.attentions(model.family, model.layers, sliding_window=model.window)
        windowed = sum(attention.kind == "window" for attention in attentions)
        cells = []
        for length in LENGTHS:
            before, now = sequences(model, length)
            ratio = f" ({now / before:.1f} ×)" if before else ""
            cells.append("–" if length > model.longest else f"{before} → {now}{ratio}")
        lines.append(f"| {model.name} | {windowed} of {model.layers}, {model.window:,} | " + " | ".join(cells) + " |")
    with tempfile.TemporaryDirectory() as name:
        extra = {"sliding_window": 128, "sliding_window_pattern": 6}
        folder = checkpoints.write(Path(name), Shape(family="gemma3_text", num_layers=12, extra=extra))
        kept, freed = run(folder, (FULL,), num_prompts=24), run(folder, None, num_prompts=24)
    lines += [
        "",
        "A run of a tiny Gemma 3 (12 layers, 2 of them full, window 128), a cache of 2,560 tokens in every layer:",
        "24 requests with prompts of 900 and answers of 200 tokens, by the real scheduler, runner and attention.",
        "",
        "| | every token kept | now |",
        "|---|---|---|",
        f"| requests that ran at once, at most | {kept[0]} | {freed[0]} |",
        f"| their tokens, at most | {kept[1]:,} | {freed[1]:,} |",
        f"| preemptions | {kept[2]} | {freed[2]} |",
        "",
        "`PYTHONPATH=tests python -m bench.windows` writes this page.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
