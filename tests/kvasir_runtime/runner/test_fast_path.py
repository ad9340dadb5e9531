"""The fast path of a step samples what the general path samples, and is taken where nothing more is wanted."""

import random
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import SamplingConfig

pytestmark = pytest.mark.skipif(
    (found := library()) is None or not found.has("step"), reason="this processor or installation has no whole step"
)

PLAIN = SamplingConfig(max_tokens=50, temperature=0.0)
TOLD = SamplingConfig(max_tokens=50, temperature=0.0, logprobs=0)
WARM = SamplingConfig(max_tokens=50, temperature=1.0, seed=3)
NUCLEUS = SamplingConfig(max_tokens=50, temperature=0.8, top_p=0.9, seed=4)
TOP_K = SamplingConfig(max_tokens=50, temperature=0.7, top_k=5, min_p=0.02, seed=5)
BIASED = SamplingConfig(max_tokens=50, temperature=0.0, logit_bias=((7, 100.0),))
PENALISED = SamplingConfig(max_tokens=50, temperature=0.9, top_p=0.9, seed=6, repetition_penalty=1.2)
EDITED = (
    PENALISED,
    replace(PLAIN, frequency_penalty=0.7, presence_penalty=-0.3, logit_bias=((9, 1.5), (40, -100.0))),
    replace(NUCLEUS, bad_words=((7,), (11, 12))),
    replace(TOP_K, allowed_token_ids=(5, 300, 17, 4, 250, 90)),
    WARM,
)


class Laps(StepProfiler):
    """Keeps the names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def lap(self, name: str) -> None:
        self.names.append(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model") / "m", Shape(dtype=torch.bfloat16, num_layers=3))


def made(folder: Path, cache_dtype: torch.dtype = torch.bfloat16) -> ModelRunner:
    return runner_of(folder, ops=cpu_ops(), dtype=torch.bfloat16, cache_dtype=cache_dtype)


def streams(*samplings: SamplingConfig) -> list[Stream]:
    """Five of different lengths, sampled in these ways in turn."""
    lengths = (1, 70, 15, 16, 17)
    prompts = [tuple(random.Random(length).choices(range(3, 320), k=length)) for length in lengths]
    return [Stream(prompt=prompt, sampling=samplings[i % len(samplings)]) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("ways", [(PLAIN,), (WARM, NUCLEUS, PLAIN, TOP_K), EDITED], ids=["greedy", "mixed", "edited"])
def test_both_paths_give_the_same_answers(
    folder: Path, ways: tuple[SamplingConfig, ...], cache_dtype: torch.dtype, scattered: bool
) -> None:
    answers = []
    for samplings in (ways, [replace(way, logprobs=0) for way in ways]):
        hand, moving = Hand(made(folder, cache_dtype), scattered=scattered), streams(*samplings)
        hand.run(moving[:2], 9)  # whole prompts at once
        hand.run(moving, 15, chunk=6)  # those who join compute several steps before they draw
        hand.preempt(moving[1])
        hand.run(moving, 40)
        answers.append([stream.answer for stream in moving])
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers[0]}) > 1


def test_a_request_with_more_takes_the_others_along_and_back(folder: Path) -> None:
    runner, laps = made(folder), Laps()
    runner.use_profiler(laps)
    hand, (alone, other, *_) = Hand(runner), streams(PLAIN)
    hand.run([alone], 3)
    assert laps.names == ["batch", "forward"] * 3
    for sampling in (WARM, NUCLEUS, BIASED, PENALISED):
        guest = Stream(prompt=other.prompt, sampling=sampling)
        laps.names.clear()
        hand.run([alone, guest], len(alone.answer) + 2)
        assert laps.names == ["batch", "forward"] * (len(laps.names) // 2)
        hand.release(guest)
    guest = Stream(prompt=other.prompt, sampling=TOLD)
    laps.names.clear()
    hand.run([alone, guest], len(alone.answer) + 2)
    assert laps.names[:3] == ["batch", "forward", "head+draw"]
    hand.release(guest)
    laps.names.clear()
    hand.run([alone], len(alone.answer) + 2)
    assert laps.names[-2:] == ["batch", "forward"]
    quiet = Stream(prompt=alone.prompt)
    Hand(made(folder)).run([quiet], len(alone.answer))
    assert alone.answer == quiet.answer


def test_an_answer_that_may_not_end_yet_does_not(folder: Path) -> None:
    runner, laps = made(folder), Laps()
    runner.use_profiler(laps)
    stream = Stream(prompt=(5, 6, 7))
    Hand(runner).run([stream], 1)
    end = replace(PLAIN, stop_token_ids=(stream.answer[0],))
    free, held = Stream(prompt=(5, 6, 7), sampling=end), Stream(prompt=(5, 6, 7), sampling=end, min_tokens=2)
    Hand(runner).run([free, held], 4)
    assert free.answer[0] == stream.answer[0]
    assert stream.answer[0] not in held.answer[:2]
    assert laps.names == ["batch", "forward"] * 5
