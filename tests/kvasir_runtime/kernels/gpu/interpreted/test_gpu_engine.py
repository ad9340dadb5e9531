"""A whole model on the Triton kernels, driven by the real scheduler, answers token for token as on the references."""

import random
from pathlib import Path

import pytest
import torch

from fakes import triton_device

DEVICE = triton_device.device()

# ruff: noqa: E402 -- behind the question where it can run
from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.oracle import oracle_of
from fakes.overlapping import Overlapping
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.kv_quant import FLOAT8, INT4
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.wire import EngineRequest, SamplingConfig

SHAPES = {
    "llama": Shape(),
    "qwen3": Shape(
        family="qwen3", head_dim=24, extra={"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
    ),
    "qwen2-moe": Shape(family="qwen2_moe"),
    "gemma2": Shape(family="gemma2", tied=True, head_dim=24),
    "gemma3": Shape(family="gemma3_text", tied=True, head_dim=24),
    "qwen3-next": Shape(family="qwen3_next", std=0.2),
    "deepseek-v2": Shape(family="deepseek_v2", std=0.2),
}
CACHES = [*((name, None) for name in SHAPES), ("llama", FLOAT8), ("qwen3", INT4), ("deepseek-v2", torch.int8)]


@pytest.mark.parametrize(("name", "cached"), CACHES)
def test_answers_are_those_of_the_references(tmp_path: Path, name: str, cached: torch.dtype | None) -> None:
    folder = checkpoints.write(tmp_path / name, SHAPES[name])
    triton = ops_for(DEVICE)
    assert triton.name == "triton"
    assert answers(folder, triton, cached) == answers(folder, REFERENCE, cached)


def test_several_tokens_at_once_behind_long_and_short_contexts(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", SHAPES["gemma2"])

    def found(ops: Ops) -> list[list[int]]:
        chooser = random.Random(2)
        streams = [Stream(prompt=tuple(chooser.choices(range(3, 320), k=length))) for length in (9, 20, 41)]
        runner = runner_of(folder, num_blocks=16, max_sequences=3, ops=ops, device=DEVICE, cache_dtype=torch.int8)
        hand = Hand(runner)
        hand.step([(stream, len(stream.prompt) - 8) for stream in streams])
        for _ in range(2):  # as drafts are verified: so many tokens of each sequence
            hand.step([(stream, 4) for stream in streams])
        hand.run(streams, 2)
        return [stream.answer for stream in streams]

    assert found(ops_for(DEVICE)) == found(REFERENCE)


@pytest.mark.parametrize("name", ["qwen3-next", "deepseek-v2"])
def test_logits_of_prompts_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    folder = checkpoints.write(tmp_path / name, SHAPES[name])
    tokens = tuple(random.Random(3).choices(range(3, 320), k=45))
    found = runner_of(folder, num_blocks=16, max_sequences=3, ops=ops_for(DEVICE), device=DEVICE).logits(tokens)
    torch.testing.assert_close(found.cpu(), oracle_of(folder).logits(tokens), atol=1e-4, rtol=1e-4)


def answers(folder: Path, ops: Ops, cached: torch.dtype | None) -> dict[str, list[int]]:
    """Greedy and drawn answers of prompts that share a prefix and are chunked by a small budget."""
    chooser = random.Random(1)
    common = tuple(chooser.choices(range(3, 320), k=17))
    samplings = [
        SamplingConfig(temperature=0.0, max_tokens=4, ignore_eos=True),
        SamplingConfig(temperature=1.0, max_tokens=4, seed=5, ignore_eos=True),
        SamplingConfig(temperature=0.8, top_k=40, top_p=0.9, max_tokens=4, seed=6, ignore_eos=True),
    ]
    # Interpreted kernels make the inputs of steps too, from rows that lie on a device, as they do on a card.
    stream = Overlapping() if DEVICE.type == "cpu" and ops is not REFERENCE else None
    sizes = {"num_blocks": 16, "max_sequences": 3}
    runner = runner_of(folder, **sizes, ops=ops, device=DEVICE, cache_dtype=cached, device_stream=stream)
    scheduler, found = scheduler_of(runner, budget=16), dict[str, list[int]]()
    for index, sampling in enumerate(samplings):
        prompt = (*common, *chooser.choices(range(3, 320), k=1 + 3 * index))
        assert scheduler.submit(EngineRequest(request_id=str(index), prompt=prompt, sampling=sampling), 0.0) is None
        found[str(index)] = []
    for now in range(200):
        plan = scheduler.plan(float(now))
        if plan is None:
            break
        for event in scheduler.commit(runner.collect(runner.launch(plan)), float(now)):
            found[event.request_id] += event.token_ids
    assert [len(tokens) for tokens in found.values()] == [4, 4, 4]
    return found
