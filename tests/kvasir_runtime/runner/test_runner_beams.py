"""Beam search of scheduler and runner is that of transformers, token for token, however it is cut into steps."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import last_outputs, runner_of
from fakes.checkpoints import Shape
from fakes.oracle import oracle_of
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import BeamSearchConfig, EngineOutput, EngineRequest, SamplingConfig

SHAPES = {
    "llama": Shape(std=0.3),
    "mistral": Shape(family="mistral", extra={"sliding_window": 24}, std=0.3),
    "qwen2": Shape(family="qwen2", tied=True, std=0.3),
    "qwen3": Shape(family="qwen3", std=0.3),
}
STOPS = (0, 5, 9, 14, 21, 33)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, SHAPES[name])


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 10_007 + length).choices(range(40, 320), k=length))


def searching(
    name: str, ids: Sequence[int], width: int, *, num_tokens: int, stops: Sequence[int] = STOPS, **rest: object
) -> EngineRequest:
    """A request for all beams; stops instead of the model's own, so that many of them are met."""
    beam = BeamSearchConfig(width=width, answers=tuple(f"{name}/{number}" for number in range(width)), **rest)  # type: ignore[arg-type]
    sampling = SamplingConfig(max_tokens=num_tokens, ignore_eos=True, stop_token_ids=tuple(stops), logprobs=0)
    return EngineRequest(request_id=f"{name}/0", prompt=tuple(ids), sampling=sampling, beam=beam)


def run(
    runner: ModelRunner, requests: list[EngineRequest], *, budget: int = 256, depth: int = 1
) -> tuple[dict[str, EngineOutput], int]:
    """The last events by id, and how many joins there were."""
    return last_outputs(runner, requests, budget=budget, depth=depth)


def answers(ended: dict[str, EngineOutput], request: EngineRequest) -> list[tuple[int, ...]]:
    assert request.beam is not None
    found = [ended[name] for name in request.beam.answers]
    return [(*e.token_ids, *(() if e.stop_token_id is None else (e.stop_token_id,))) for e in found]


@torch.inference_mode()
def judged(folder: Path, request: EngineRequest) -> tuple[list[tuple[int, ...]], list[float]]:
    """What transformers' generate() answers, and its scores."""
    assert request.beam is not None
    ids = torch.tensor([request.prompt])
    done = oracle_of(folder)._model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=request.beam.width,
        num_return_sequences=request.beam.width,
        max_new_tokens=request.sampling.max_tokens,
        min_new_tokens=request.sampling.min_tokens or None,
        length_penalty=request.beam.length_penalty,
        early_stopping=request.beam.early_stopping,
        eos_token_id=list(request.sampling.stop_token_ids) or None,
        pad_token_id=1,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    tails = [tuple(row[len(request.prompt) :]) for row in done.sequences.tolist()]
    return [cut(tail, request.sampling.stop_token_ids) for tail in tails], getattr(
        done, "sequences_scores", torch.zeros(0)
    ).tolist()


def cut(tail: tuple[int, ...], stops: Sequence[int]) -> tuple[int, ...]:
    """Without the padding behind the first stop."""
    end = next((place for place, token in enumerate(tail) if token in stops), len(tail) - 1)
    return tail[: end + 1]


@pytest.mark.parametrize(
    ("name", "width"), [*(("llama", width) for width in range(1, 9)), ("mistral", 4), ("qwen2", 7), ("qwen3", 5)]
)
def test_every_width_and_family_gives_what_transformers_gives(root: Path, name: str, width: int) -> None:
    folder = folder_of(root, name)
    request = searching("a", prompt(13 + width), width, num_tokens=16)
    ended, _ = run(runner_of(folder), [request])
    tokens, scores = judged(folder, request)
    assert answers(ended, request) == tokens
    assert width == 1 or [ended[name].score for name in request.beam.answers] == pytest.approx(scores, abs=1e-4)


def test_penalties_and_early_stopping_mean_the_same_and_are_told_apart(root: Path) -> None:
    folder, found = folder_of(root, "llama"), set()
    for penalty, early in (
        (1.0, True),
        (1.0, "never"),
        (2.0, False),
        (2.0, True),
        (2.0, "never"),
        (0.0, False),
        (-1.0, True),
    ):
        request = searching("a", prompt(21), 4, num_tokens=24, length_penalty=penalty, early_stopping=early)
        ended, _ = run(runner_of(folder), [request])
        tokens, scores = judged(folder, request)
        assert answers(ended, request) == tokens, (penalty, early)
        assert [ended[name].score for name in request.beam.answers] == pytest.approx(scores, rel=1e-4)
        found.add(tuple(tokens))
    assert len(found) == 3


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [9, 64])
def test_chunked_prompts_preemptions_and_neighbours_change_nothing(root: Path, depth: int, budget: int) -> None:
    folder = folder_of(root, "qwen3")
    requests = [searching(str(n), prompt(20 + 7 * n), width, num_tokens=20) for n, width in enumerate((4, 2, 6, 3, 1))]
    greedy = SamplingConfig(temperature=0.0, max_tokens=60, ignore_eos=True)
    plain = [EngineRequest(request_id=f"p{n}", prompt=prompt(9 + n), sampling=greedy) for n in range(3)]
    together = [plain[0], *requests[:3], plain[1], *requests[3:], plain[2]]
    runner = runner_of(folder, num_blocks=26, max_sequences=9)
    ended, joins = run(runner, together, budget=budget, depth=depth)
    assert joins > len(together) or budget == 9, "somebody was preempted"
    for request in requests:
        assert answers(ended, request) == judged(folder, request)[0]


def test_beams_without_a_stop_run_to_the_end_and_min_tokens_holds(root: Path) -> None:
    folder = folder_of(root, "qwen2")
    endless = searching("a", prompt(11), 5, num_tokens=12, stops=())
    late = searching("b", prompt(11), 5, num_tokens=12)
    sampling = SamplingConfig(max_tokens=12, min_tokens=6, ignore_eos=True, stop_token_ids=STOPS, logprobs=0)
    late = EngineRequest(request_id="b/0", prompt=late.prompt, sampling=sampling, beam=late.beam)
    ended, _ = run(runner_of(folder), [endless, late])
    for request in (endless, late):
        assert answers(ended, request) == judged(folder, request)[0]
    assert {ended[f"a/{n}"].finish_reason for n in range(5)} == {"length"}


def test_logprobs_of_a_beam_are_those_of_its_tokens(root: Path) -> None:
    folder = folder_of(root, "llama")
    request = searching("a", prompt(9), 3, num_tokens=8, stops=())
    ended, _ = run(runner_of(folder), [request])
    for name in request.beam.answers:
        event = ended[name]
        logits = oracle_of(folder).logits([*request.prompt, *event.token_ids])[len(request.prompt) - 1 : -1]
        want = logits.log_softmax(dim=-1).gather(1, torch.tensor(event.token_ids)[:, None])[:, 0]
        assert [one.logprob for one in event.logprobs] == pytest.approx(want.tolist(), abs=1e-4)
        assert event.score == pytest.approx(want.sum().item() / 8, abs=1e-4)
