"""The first steps: one of full size, one token, and chunks of the lengths for which kernels come in variants."""

from pathlib import Path

import msgspec
import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of
from fakes.overlapping import Overlapping
from fakes.runner import FakeRunner
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import warmup
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.wire import EngineFacts


@pytest.mark.parametrize(
    ("num_tokens", "others", "want"),
    [
        (100, (), [(0, 100), (50, 1)]),
        (100, (2, 40, 300), [(0, 100), (50, 1), (0, 2), (0, 40)]),
    ],
)
def test_steps_cover_what_fits(num_tokens: int, others: tuple[int, ...], want: list[tuple[int, int]]) -> None:
    plans = warmup.plans_of(num_tokens, (tuple(range(13)),), others, generates=True)
    assert [(chunk.start, chunk.num_tokens) for plan in plans for chunk in plan.chunks] == want
    assert [plan.step for plan in plans] == list(range(len(want)))


def test_a_model_without_a_vocabulary_pools_once() -> None:
    (plan,) = warmup.plans_of(100, (tuple(range(13)),), (2, 40), generates=False)
    assert [(chunk.num_tokens, chunk.samples) for chunk in plan.chunks] == [(100, False)]


def test_the_first_of_several_ranks_measures_the_largest_step_with_its_own_blocks() -> None:
    """Of each rank as many blocks as that step takes."""
    facts, made = msgspec.structs.replace(FakeRunner().facts, data_ranks=2, max_batch_tokens=100), list[EngineFacts]()

    class Stopped(Exception):
        """Nothing is computed."""

    def scratch(given: EngineFacts) -> ModelRunner:
        made.append(given)
        raise Stopped

    with pytest.raises(Stopped):
        warmup.measured(scratch, facts, torch.device("cpu"))
    assert [(one.num_blocks, one.data_ranks, one.max_model_len) for one in made] == [(2 * 25, 2, 100)]


@pytest.mark.parametrize("device_stream", [None, Overlapping()], ids=["host-rows", "device-rows"])
def test_a_runner_computes_them_one_after_the_other(tmp_path: Path, device_stream: DeviceStream | None) -> None:
    runner = runner_of(checkpoints.write(tmp_path), device_stream=device_stream)
    for plan in warmup.plans_of(100, (tuple(range(13)),), warmup.OTHER_CHUNKS, generates=True):
        (sampled,) = runner.collect(runner.launch(plan)).sampled
        assert len(sampled.tokens) == 1
