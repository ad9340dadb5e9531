"""A launched step passes through its states in order, and skips those that it does not need."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from fakes import checkpoints
from fakes.by_hand import runner_of
from fakes.checkpoints import Shape
from fakes.overlapping import Overlapping
from kvasir_api.options import ServeOptions
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.guide import validate, vocabulary
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.runner.launched_step import Collected, ForwardRunning, Queued, Sampled, WaitingForGrammar
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import Grammar, SamplingConfig

GREEDY = SamplingConfig(temperature=0.0, max_tokens=20)
LOGPROBS = SamplingConfig(temperature=0.0, max_tokens=20, logprobs=0)
SCORED = SamplingConfig(temperature=0.0, max_tokens=20, prompt_logprobs=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(dtype=torch.bfloat16, num_layers=2))


def plans(sampling: SamplingConfig) -> list[StepPlan]:
    """A prompt of three tokens, scored where its logprobs are wanted, and two steps of one token."""
    join = Join(
        row=0, request_id="a", tokens=(5, 6, 7), prompt_tokens=3, computed_tokens=0, tables=((4, 9),), sampling=sampling
    )
    chunks = [Chunk(row=0, start=start, num_tokens=count, samples=True) for start, count in ((0, 3), (3, 1), (4, 1))]
    if sampling.prompt_logprobs >= 0:
        chunks[0] = replace(chunks[0], scores=(1, 3))
    return [StepPlan(step=i, joins=() if i else (join,), chunks=(chunk,)) for i, chunk in enumerate(chunks)]


def test_a_host_computes_a_step_when_it_is_collected(folder: Path) -> None:
    runner = runner_of(folder)
    steps = [runner.launch(plan) for plan in plans(GREEDY)]
    assert [type(step.state) for step in steps] == [Queued] * 3
    with pytest.raises(ValueError, match="step 1 is not the oldest launched plan"):
        runner.collect(steps[1])
    runner.collect(steps[0])
    assert [type(step.state) for step in steps] == [Collected, Queued, Queued]


@pytest.mark.parametrize(("sampling", "fast"), [(GREEDY, True), (LOGPROBS, True), (SCORED, False)])
def test_other_cores_start_the_forward_pass_of_the_oldest_step(
    folder: Path, sampling: SamplingConfig, fast: bool
) -> None:
    runner = runner_of(folder, ops=ops_for(torch.device("cpu")), dtype=torch.bfloat16)
    if runner._model.step is None:
        pytest.skip("this processor or installation has no whole step")
    steps = [runner.launch(plan) for plan in plans(sampling)]
    assert [step.state for step in steps] == [ForwardRunning(fast_path=fast), Queued(), Queued()]
    answers = [runner.collect(step).sampled[0].tokens for step in steps]
    plain = runner_of(folder, ops=ops_for(torch.device("cpu")), dtype=torch.bfloat16)
    assert answers == [plain.collect(plain.launch(plan)).sampled[0].tokens for plan in plans(sampling)]


def test_a_device_samples_when_a_step_is_launched(folder: Path) -> None:
    runner = runner_of(folder, device_stream=Overlapping())
    steps = [runner.launch(plan) for plan in plans(GREEDY)]
    assert [type(step.state) for step in steps] == [Sampled] * 3


def test_a_device_is_waited_for_at_every_step_whether_it_samples_or_not(folder: Path) -> None:
    stream = Overlapping()
    runner = runner_of(folder, device_stream=stream)
    prompt = tuple(range(3, 43))
    join = Join(row=0, request_id="a", tokens=prompt, prompt_tokens=40, computed_tokens=0, tables=(tuple(range(5)),),
                sampling=GREEDY)  # fmt: skip
    waited = []
    for number, start in enumerate(range(0, 40, 10)):
        chunk = Chunk(row=0, start=start, num_tokens=10, samples=start == 30)
        step = runner.launch(StepPlan(step=number, joins=() if number else (join,), chunks=(chunk,)))
        runner.collect(step)
        waited.append(stream.num_waits[0])
    runner.collect(runner.launch(StepPlan(step=9)))
    assert [*waited, stream.num_waits[0]] == [1, 2, 3, 4, 5]


def test_a_step_waits_for_its_grammar_until_the_step_before_is_collected_or_the_next_one_launched(folder: Path) -> None:
    found = validate.verdict(Grammar(kind="regex", text="[a-z]{1,40}"), vocabulary.load(folder, 320, (0,)))
    options = ServeOptions(model=str(folder), device="cpu", kv_cache_tokens=512, max_model_len=64, dtype="float32")
    runner = build(options, lambda _: None, Overlapping())
    guided = SamplingConfig(temperature=0.0, max_tokens=20, logprobs=0, grammar=found.grammar)
    first, second, third = plans(guided)
    steps = [runner.launch(first)]
    assert isinstance(steps[0].state, WaitingForGrammar)
    steps.append(runner.launch(second))
    assert [type(step.state) for step in steps] == [Sampled, WaitingForGrammar]
    steps.append(runner.launch(third))
    assert [type(step.state) for step in steps] == [Collected, Sampled, WaitingForGrammar]
    runner.collect(steps[0])
    runner.collect(steps[1])
    assert [type(step.state) for step in steps] == [Collected, Collected, Sampled]
    assert len(runner.collect(steps[2]).sampled) == 1
