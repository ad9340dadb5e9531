"""How many tokens an encoder takes in a second: `python -m bench.encoders [small|base]`, with PYTHONPATH=tests.

Texts of mixed lengths, in steps as the engine makes them, without padding; and by transformers in batches of 32 with
padding, as they come and sorted by length. In turns, in float32 with all processors. Random weights: of them depends
nothing here.
"""

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel

from fakes.by_hand import runner_of, scheduler_of
from kvasir_runtime.wire import EngineRequest, PoolingConfig, SamplingConfig

SIZES = {"small": (384, 12, 12), "base": (768, 12, 12)}
"""Hidden size, layers and heads: bge-small, bge-base."""
LENGTHS, TEXTS, BATCH, ROUNDS, VOCAB, LONGEST = (8, 16, 24, 40, 64, 128, 200, 400), 128, 32, 5, 30_522, 512
BUDGETS = (512, 2048)


def texts() -> list[tuple[int, ...]]:
    """The same in every run."""
    chooser = random.Random(0)
    return [tuple(chooser.choices(range(1000, VOCAB), k=chooser.choice(LENGTHS))) for _ in range(TEXTS)]


def ours(folder: Path, prompts: list[tuple[int, ...]], budget: int) -> Callable[[], None]:
    """A function that embeds all texts in steps of at most so many tokens."""
    runner = runner_of(folder, longest=LONGEST, num_blocks=1 << 16, max_sequences=256)

    def run() -> None:
        scheduler = scheduler_of(runner, budget=budget, prefix_cache=False)
        for number, prompt in enumerate(prompts):
            sampling, pooling = SamplingConfig(max_tokens=1), PoolingConfig(kind="mean")
            request = EngineRequest(request_id=str(number), prompt=prompt, sampling=sampling, pooling=pooling)
            assert scheduler.submit(request, 0.0) is None
        while (plan := scheduler.plan(0.0)) is not None:
            scheduler.commit(runner.collect(runner.launch(plan)), 0.0)

    return run


def theirs(model: torch.nn.Module, prompts: list[tuple[int, ...]]) -> Callable[[], None]:
    """A function that computes all texts by transformers, in their order."""

    @torch.inference_mode()
    def run() -> None:
        for start in range(0, len(prompts), BATCH):
            batch = prompts[start : start + BATCH]
            longest = max(map(len, batch))
            ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in batch])
            mask = torch.tensor([[int(at < len(prompt)) for at in range(longest)] for prompt in batch])
            model(input_ids=ids, attention_mask=mask)

    return run


def main(size: str) -> None:
    """Print minimum, median and maximum of the rounds for each way."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    hidden, layers, heads = SIZES[size]
    config = AutoConfig.for_model(
        "bert",
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=LONGEST,
    )
    prompts = texts()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = AutoModel.from_config(config, dtype=torch.float32).eval()
        model.save_pretrained(folder)
        written = json.loads((folder / "config.json").read_text()) | {"architectures": ["BertModel"]}
        (folder / "config.json").write_text(json.dumps(written))
        ways = {f"kvasir, steps of {budget} tokens": ours(folder, prompts, budget) for budget in BUDGETS}
        ways["transformers, padded"] = theirs(model, prompts)
        ways["transformers, sorted and padded"] = theirs(model, sorted(prompts, key=len))
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 1):
            for name, run in ways.items():
                began = time.perf_counter()
                run()
                if number:  # the first warms up
                    rates[name].append(sum(map(len, prompts)) / (time.perf_counter() - began))
    for name, found in rates.items():
        print(f"{name:<34}{min(found):>8.0f}{statistics.median(found):>8.0f}{max(found):>8.0f} tokens/s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "small")
