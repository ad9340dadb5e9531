"""Thousands of draws through scheduler and runner follow the distribution that was asked for, by a chi-square test.

Seeds are fixed, so that it passes or fails the same way every time. The distributions are written down a second time
here, from the oracle's logits, in the order of vLLM: temperature, min_p, top_k, top_p.
"""

import math
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.oracle import oracle_of
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import Draft, TokenHistory
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineRequest, SamplingConfig

NUM_DRAWS = 3000
PROMPT = (50, 60, 70, 80, 90, 100, 110, 120, 130)
ONE_IN_TEN_THOUSAND = 3.719
"""Standard deviations of a normal distribution that one value in ten thousand lies beyond."""
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 2.0},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.6},
    "min-p": {"min_p": 0.15},
    "top-k-of-one": {"top_k": 1},
    "all-of-them": {"temperature": 1.4, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "biased": {"logit_bias": ((77, 3.0), (12, -100.0))},
    "allowed": {"allowed_token_ids": (7, 77, 177, 200, 3)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(std=0.12, seed=11))


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    return runner_of(folder, num_blocks=256, max_sequences=64)


@pytest.fixture(scope="module")
def logits(folder: Path) -> torch.Tensor:
    return oracle_of(folder).logits(PROMPT)[-1].double()


def draws(runner: ModelRunner, settings: dict[str, Any]) -> Counter[int]:
    """How often each token was drawn, by as many requests as there are draws, each with a seed of its own."""
    scheduler, found, flying = scheduler_of(runner, budget=256), Counter[int](), deque[Any]()
    for seed in range(NUM_DRAWS):
        sampling = SamplingConfig(max_tokens=1, ignore_eos=True, seed=seed, **{"temperature": 1.0, **settings})
        assert scheduler.submit(EngineRequest(request_id=str(seed), prompt=PROMPT, sampling=sampling), 0.0) is None
    while scheduler.has_work:
        while len(flying) < 2 and (plan := scheduler.plan(0.0)) is not None:
            flying.append(runner.launch(plan))
        for event in scheduler.commit(runner.collect(flying.popleft()), 0.0):
            found.update(event.token_ids)
    return found


def wanted(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    logit_bias: tuple[tuple[int, float], ...] = (),
    allowed_token_ids: tuple[int, ...] = (),
) -> list[float]:
    """The probability of each token."""
    logits = logits.clone()
    if allowed_token_ids:
        kept = torch.full_like(logits, -math.inf)
        kept[list(allowed_token_ids)] = logits[list(allowed_token_ids)]
        logits = kept
    for token, bias in logit_bias:
        logits[token] += bias
    ranked = sorted(enumerate((logits / temperature).softmax(0).tolist()), key=lambda pair: -pair[1])
    ranked = [pair for pair in ranked if pair[1] >= min_p * ranked[0][1]]
    ranked = ranked[: top_k or len(ranked)]
    mass, kept_mass, few = sum(p for _, p in ranked), 0.0, []
    for token, probability in ranked:
        if few and kept_mass >= top_p * mass:
            break
        few.append((token, probability))
        kept_mass += probability
    found = [0.0] * len(logits)
    for token, probability in few:
        found[token] = probability / kept_mass
    return found


def chi_square(found: Counter[int], probabilities: list[float]) -> tuple[float, float]:
    """The statistic and its bound, tokens that are expected less than five times being taken together."""
    bins, rare, rare_found = [], 0.0, 0
    for token, probability in enumerate(probabilities):
        expected = probability * NUM_DRAWS
        if expected >= 5:
            bins.append((found[token], expected))
        else:
            rare, rare_found = rare + expected, rare_found + found[token]
    if rare >= 5:
        bins.append((rare_found, rare))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in bins)
    freedom = max(1, len(bins) - 1)
    # Wilson and Hilferty 1931: the cube root of a chi-square by its degrees of freedom is nearly normal.
    spread = 2 / (9 * freedom)
    return statistic, freedom * (1 - spread + ONE_IN_TEN_THOUSAND * math.sqrt(spread)) ** 3


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_follow_the_requested_distribution(runner: ModelRunner, logits: torch.Tensor, name: str) -> None:
    found, probabilities = draws(runner, SETTINGS[name]), wanted(logits, **SETTINGS[name])
    assert found.total() == NUM_DRAWS
    impossible = {token for token in found if probabilities[token] == 0}
    assert not impossible
    statistic, bound = chi_square(found, probabilities)
    assert statistic < bound


class Guess:
    """Drafts the token that is likeliest behind the prompt, which is sometimes right."""

    def propose(self, history: TokenHistory, most: int) -> Draft:
        return Draft((77,) * min(2, most), (1.0, 1.0)[:most], 2)


@pytest.mark.parametrize("settings", [{"logit_bias": ((77, 4.0),)}, {"top_k": 40, "top_p": 0.9, "temperature": 1.4}])
def test_draws_with_drafts_are_the_draws_without(folder: Path, settings: dict[str, Any]) -> None:
    """The draws of each request, so that they follow the distribution which the test above asks of those."""
    runner = runner_of(folder, num_blocks=512, max_sequences=64, ops=cpu_ops())
    told, drafted = [], 0
    for drafter in (None, Guess()):
        scheduler, answers = scheduler_of(runner, budget=256, drafter=drafter), defaultdict[str, list[int]](list)
        for first in range(0, 500, 50):  # while some wait for a row there are no drafts
            for seed in range(first, first + 50):
                sampling = SamplingConfig(max_tokens=6, ignore_eos=True, seed=seed, **{"temperature": 1.0, **settings})
                request = EngineRequest(request_id=str(seed), prompt=PROMPT, sampling=sampling)
                assert scheduler.submit(request, 0.0) is None
            while (plan := scheduler.plan(0.0)) is not None:
                for event in scheduler.commit(runner.collect(runner.launch(plan)), 0.0):
                    answers[event.request_id] += event.token_ids
        told.append(answers)
        drafted = scheduler.report(RuntimeState()).totals.drafted_tokens
    assert told[0] == told[1]
    assert drafted > 100


@pytest.mark.parametrize(
    ("name", "other"), [("plain", {"temperature": 0.8}), ("top-p", {"top_p": 0.65}), ("hot", {"temperature": 1.4})]
)
def test_the_judge_tells_a_slightly_wrong_distribution(
    runner: ModelRunner, logits: torch.Tensor, name: str, other: dict[str, Any]
) -> None:
    statistic, bound = chi_square(draws(runner, SETTINGS[name]), wanted(logits, **other))
    assert statistic > bound


def test_choices_of_one_request_are_independent_draws(runner: ModelRunner, logits: torch.Tensor) -> None:
    """Seeds next to each other give no correlation: pairs of neighbours follow the product of the distribution."""
    settings, pairs = {"top_k": 4}, Counter[tuple[int, int]]()
    probabilities = wanted(logits, **settings)
    kept = [token for token, probability in enumerate(probabilities) if probability > 0]
    order: dict[str, int] = {}
    limits = Limits(num_blocks=256, block_size=8, max_batch_tokens=256, max_sequences=64, max_model_len=4096)
    scheduler = Scheduler(limits)
    for seed in range(NUM_DRAWS):
        sampling = SamplingConfig(max_tokens=1, ignore_eos=True, seed=seed, temperature=1.0, **settings)
        scheduler.submit(EngineRequest(request_id=str(seed), prompt=PROMPT, sampling=sampling), 0.0)
    while (plan := scheduler.plan(0.0)) is not None:
        for event in scheduler.commit(runner.collect(runner.launch(plan)), 0.0):
            order[event.request_id] = event.token_ids[0]
    drawn = [order[str(seed)] for seed in range(NUM_DRAWS)]
    pairs.update(zip(drawn[::2], drawn[1::2], strict=True))
    statistic = 0.0
    for one in kept:
        for other in kept:
            expected = probabilities[one] * probabilities[other] * NUM_DRAWS / 2
            statistic += (pairs[one, other] - expected) ** 2 / expected
    assert statistic < 15 * (1 - 2 / 135 + ONE_IN_TEN_THOUSAND * math.sqrt(2 / 135)) ** 3
