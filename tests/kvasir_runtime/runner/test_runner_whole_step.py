"""The forward pass in one call of C++, in bfloat16: every family against transformers in float32, however it is cut.

Rounding to 8 bits of mantissa moves logits; a greedy token may be another one only where both are nearly equal.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes import checkpoints, family_checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.oracle import oracle_of
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.kv_quant import INT4
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.runner.runner import ModelRunner

pytestmark = pytest.mark.skipif(library() is None, reason="this processor or installation has no C++ kernels")

SMALL = Shape(dtype=torch.bfloat16, intermediate_size=160, num_layers=3)
FAMILIES = {
    "llama": SMALL,
    "llama-tied-one-head": replace(SMALL, tied=True, num_kv_heads=1, seed=1),
    "llama-biased": replace(SMALL, extra={"attention_bias": True}, seed=2),
    "mistral-window": replace(SMALL, family="mistral", extra={"sliding_window": 24}, seed=3),
    "qwen2-windows": replace(
        SMALL,
        family="qwen2",
        tied=True,
        extra={"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 24},
        seed=4,
    ),
    "qwen3": replace(SMALL, family="qwen3", head_dim=24, seed=5),
    "gemma2": replace(SMALL, family="gemma2", tied=True, head_dim=24, seed=6),
    "gemma3": replace(SMALL, family="gemma3_text", tied=True, head_dim=24, seed=7),
}
# Of a logit's spread over the vocabulary: what two greedy choices may differ by, and what logits may be off by.
NEARLY = {torch.bfloat16: 0.06, torch.int8: 0.12, INT4: 1.0}
each_family = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, FAMILIES[name])


def made(root: Path, name: str, cache_dtype: torch.dtype = torch.bfloat16) -> ModelRunner:
    return runner_of(folder_of(root, name), ops=cpu_ops(), dtype=torch.bfloat16, cache_dtype=cache_dtype)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 7 + length).choices(range(3, 320), k=length))


def off_by(root: Path, name: str, stream: Stream) -> float:
    """How far below the best token's logit those of the answer are at most, in units of the logits' spread."""
    logits: Tensor = oracle_of(folder_of(root, name)).logits(stream.tokens)[len(stream.prompt) - 1 : -1]
    return below_the_best(logits, stream)


def below_the_best(logits: Tensor, stream: Stream) -> float:
    """The same of logits of the answer's positions."""
    chosen = logits.gather(1, torch.tensor(stream.answer)[:, None])[:, 0]
    return float(((logits.amax(dim=1) - chosen) / logits.std(dim=1)).max())


@each_family
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8, INT4])
def test_answers_are_the_best_however_the_work_is_cut(root: Path, name: str, cache_dtype: torch.dtype) -> None:
    runner = made(root, name, cache_dtype)
    assert runner._model.step is not None, "not one call of C++"
    hand = Hand(runner)
    whole, chunked, preempted = (Stream(prompt=prompt(75, seed)) for seed in (1, 2, 3))
    batch = [whole, chunked, preempted]
    hand.step([(whole, 75), (chunked, 9), (preempted, 75)])
    hand.step([(whole, 1), (chunked, 40), (preempted, 1)])
    hand.preempt(preempted)
    hand.step([(whole, 1), (chunked, 26), (preempted, 60)])
    hand.run(batch, 8, chunk=11)
    cached = Stream(prompt=whole.prompt[:64] + prompt(20, 4))
    hand.share(cached, whole, 8)
    hand.run([cached], 8)
    for stream in (*batch, cached):
        assert off_by(root, name, stream) < NEARLY[cache_dtype]


@each_family
def test_a_sequence_gets_the_same_bits_in_any_company(root: Path, name: str) -> None:
    prompts = [prompt(length, 5) for length in (1, 17, 130, 300, 64, 5)]
    answers = []
    for together in (True, False):
        streams = [Stream(prompt=one) for one in prompts]
        hand = Hand(made(root, name), seed=int(together))
        for group in [streams] if together else [[stream] for stream in streams]:
            hand.run(group, 12)
        answers.append([stream.answer for stream in streams])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["granite", "glm4", "smollm3"])
def test_factors_norms_behind_layers_and_layers_that_do_not_turn_are_in_the_one_call(root: Path, name: str) -> None:
    judge = family_checkpoints.write(root / name, name)
    runner, stream = runner_of(root / name, ops=cpu_ops(), dtype=torch.bfloat16), Stream(prompt=prompt(40))
    assert runner._model.step is not None
    Hand(runner).run([stream], 12, chunk=11)
    with torch.inference_mode():
        logits: Tensor = judge(torch.tensor(stream.tokens)[None]).logits[0, len(stream.prompt) - 1 : -1]
    assert below_the_best(logits, stream) < NEARLY[torch.bfloat16]


def test_nothing_is_computed_for_a_chunk_that_gives_no_token(root: Path) -> None:
    stream = Stream(prompt=prompt(40))
    hand = Hand(made(root, "llama"))
    hand.step([(stream, 39)])
    assert stream.answer == []
    hand.step([(stream, 1)])
    assert off_by(root, "llama", stream) < NEARLY[torch.bfloat16]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gemma3"])
def test_logits_of_the_one_call_are_those_of_the_head_alone(root: Path, name: str) -> None:
    """Of one row a sequence the call computes them; of more only the head does, when it is asked."""
    runner = made(root, name)
    groups = runner._cache.num_groups
    for wanted in ([4], [0, 2, 4]):
        batch = Batch(
            token_ids=torch.tensor(prompt(5)),
            positions=torch.arange(5),
            slots=torch.stack([torch.arange(5) + 8 * group for group in range(groups)]),
            attn_metadata=tuple(AttentionMetadata([5], [5], torch.tensor([[group]])) for group in range(groups)),
            logit_rows=torch.tensor(wanted),
        )
        output = runner._model.forward(batch, runner._cache)
        assert (output.logits is not None) == (len(wanted) == 1)
        logits = runner._model.logits_of(output)
        assert logits.shape[0] == len(wanted)
        alone = runner._model.logits(output.hidden.clone())
        assert logits.dtype == alone.dtype
        if name == "gemma2":  # the tangents of a cap are torch's there
            torch.testing.assert_close(logits, alone, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(logits, alone)
