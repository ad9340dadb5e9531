"""What a request may ask of the draw: each wish against plain formulas over logits of transformers, preempted too."""

import random
from collections import Counter, deque
from pathlib import Path

import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.oracle import TIE, oracle_of
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineOutput, EngineRequest, Logprobs, SamplingConfig

VOCAB = 320
EOS = checkpoints.EOS_TOKEN_ID


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("models") / "qwen3", Shape(family="qwen3", seed=11))


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 101 + length).choices(range(3, VOCAB), k=length))


def request(name: str, tokens: tuple[int, ...], **sampling: object) -> EngineRequest:
    values = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True, **sampling}
    return EngineRequest(request_id=name, prompt=tokens, sampling=SamplingConfig(**values))  # type: ignore[arg-type]


def serve(
    runner: ModelRunner, *requests: EngineRequest, budget: int = 64, depth: int = 1
) -> tuple[dict[str, list[EngineOutput]], int]:
    """The events of each request, and how many preemptions there were."""
    scheduler = scheduler_of(runner, budget=budget)
    events: dict[str, list[EngineOutput]] = {item.request_id: [] for item in requests}
    flying, joins = deque(), 0
    for item in requests:
        assert scheduler.submit(item, 0.0) is None
    while scheduler.has_work or flying:
        while len(flying) < depth and (plan := scheduler.plan(0.0)) is not None:
            joins += len(plan.joins)
            flying.append(runner.launch(plan))
        for event in scheduler.commit(runner.collect(flying.popleft()), 0.0):
            events[event.request_id].append(event)
    return events, joins - len(requests)


def answer(events: list[EngineOutput]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def wished(logits: torch.Tensor, sampling: SamplingConfig, given: tuple[int, ...], said: list[int]) -> list[float]:
    """Plain formulas, token by token: what the logits become by the wishes of a request."""
    changed = logits.tolist()
    if sampling.allowed_token_ids:
        changed = [x if i in sampling.allowed_token_ids else float("-inf") for i, x in enumerate(changed)]
    for token, bias in sampling.logit_bias:
        changed[token] += bias
    for token in {*given, *said}:
        factor = sampling.repetition_penalty
        changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
    for token, count in Counter(said).items():
        changed[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for word in sampling.bad_words:
        if len(word) - 1 <= len(said) and said[len(said) - len(word) + 1 :] == list(word[:-1]):
            changed[word[-1]] = float("-inf")
    return changed


def unlike(folder: Path, item: EngineRequest, said: list[int]) -> list[int]:
    """Places of a greedy answer where another token was likelier by the wishes."""
    logits = oracle_of(folder).logits([*item.prompt, *said])[len(item.prompt) - 1 : -1]
    wrong = []
    for place, token in enumerate(said):
        changed = wished(logits[place], item.sampling, item.prompt, said[:place])
        if changed[token] < max(changed) - TIE:
            wrong.append(place)
    return wrong


WISHES = {
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": 1.0},
    "negative": {"frequency_penalty": -0.5, "presence_penalty": -1.0},
    "repetition": {"repetition_penalty": 1.8},
    "bias": {"logit_bias": ((7, 4.0), (9, 3.5), (11, -100.0))},
    "allowed": {"allowed_token_ids": (30, 5, 17, 5, 200)},
    "all": {
        "frequency_penalty": 0.7,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": ((5, 1.0), (17, 2.0)),
        "allowed_token_ids": tuple(range(3, 60)),
        "bad_words": ((17, 5), (20,)),
    },
}


@pytest.mark.parametrize("name", WISHES)
def test_each_wish_changes_the_answer_as_its_formula_says(folder: Path, name: str) -> None:
    runner = runner_of(folder)
    plain, item = request("plain", prompt(30)), request("wish", prompt(30), **WISHES[name])
    events, _ = serve(runner, plain, item, request("other", prompt(12), repetition_penalty=1.5))
    assert unlike(folder, plain, answer(events["plain"])) == []
    assert unlike(folder, item, answer(events["wish"])) == []
    assert answer(events["plain"]) != answer(events["wish"]), "the wish must matter, or the test says nothing"


def test_bad_words_are_not_completed_and_their_beginnings_may_be_said(folder: Path) -> None:
    runner = runner_of(folder)
    (free,) = serve(runner, request("a", prompt(30)))[0].values()
    said = answer(free)
    for length, place in ((1, 4), (2, 6), (4, 9)):
        item = request("b", prompt(30), bad_words=(tuple(said[place - length + 1 : place + 1]), (*prompt(30)[-3:], 1)))
        (events,) = serve(runner, item)[0].values()
        held = answer(events)
        assert unlike(folder, item, held) == []
        first = next(i for i in range(16) if held[i] != said[i])
        word = list(item.sampling.bad_words[0])
        assert first <= place
        assert all(held[i : i + length] != word for i in range(16))
    # A word begun by the prompt is not one of the answer.
    across = request("c", prompt(30), bad_words=((prompt(30)[-1], said[0]),))
    assert answer(serve(runner, across)[0]["c"])[0] == said[0]


def test_where_everything_is_forbidden_the_lowest_allowed_token_comes(folder: Path) -> None:
    item = request("a", prompt(9), allowed_token_ids=(41, 40), bad_words=((40,), (41,)), max_tokens=3)
    assert answer(serve(runner_of(folder), item)[0]["a"]) == [40] * 3
    held = request("b", prompt(9), allowed_token_ids=(EOS,), min_tokens=2, max_tokens=5, ignore_eos=False)
    assert answer(serve(runner_of(folder), held)[0]["b"])[:2] == [EOS] * 2


@pytest.mark.parametrize("depth", [1, 2])
def test_wishes_hold_through_preemption_in_any_company(folder: Path, depth: int) -> None:
    requests = [
        request(
            str(i),
            prompt(20 + i),
            max_tokens=30,
            **(WISHES[list(WISHES)[i % len(WISHES)]] if i % 4 else {}),
            **({"temperature": 0.8, "seed": i} if i % 3 == 0 else {}),
            logprobs=2,
        )
        for i in range(14)
    ]
    roomy, none = serve(runner_of(folder), *requests, budget=256)
    tight, some = serve(runner_of(folder, num_blocks=30, max_sequences=8), *requests, budget=24, depth=depth)
    assert none == 0
    assert some > 0
    for item in requests:
        assert answer(tight[item.request_id]) == answer(roomy[item.request_id])
        if not item.sampling.temperature:
            assert unlike(folder, item, answer(tight[item.request_id])) == []
        assert_logprobs(folder, item, tight[item.request_id])


def assert_logprobs(folder: Path, item: EngineRequest, events: list[EngineOutput]) -> None:
    """Those of the answer are the oracle's log-softmax of unchanged logits."""
    said, found = answer(events), [one for event in events for one in event.logprobs]
    wanted = oracle_of(folder).logits([*item.prompt, *said])[len(item.prompt) - 1 : -1].log_softmax(-1)
    assert len(found) == len(said)
    for token, one, row in zip(said, found, wanted, strict=True):
        check(one, row, token, item.sampling.logprobs)


def check(one: Logprobs, row: torch.Tensor, token: int, num_top: int) -> None:
    assert one.logprob == pytest.approx(float(row[token]), abs=1e-4)
    assert one.rank == pytest.approx(int((row > row[token]).sum()) + 1, abs=1)
    assert len(one.top_ids) == len(one.top) == num_top
    assert one.top == pytest.approx(row.topk(num_top).values.tolist(), abs=1e-4)
    assert one.top == pytest.approx(row[list(one.top_ids)].tolist(), abs=1e-4)


@pytest.mark.parametrize("num_top", [0, 5])
def test_logprobs_are_of_the_unchanged_logits(folder: Path, num_top: int) -> None:
    item = request("a", prompt(18), logprobs=num_top, presence_penalty=2.0, logit_bias=((9, 50.0),), temperature=0.5)
    events, _ = serve(runner_of(folder), request("b", prompt(5)), item)
    assert_logprobs(folder, item, events["a"])
    assert not any(event.logprobs for event in events["b"])


@pytest.mark.parametrize(("budget", "depth"), [(512, 1), (7, 1), (23, 2)])
def test_prompt_logprobs_are_whole_in_chunks_and_behind_a_warm_cache(folder: Path, budget: int, depth: int) -> None:
    runner = runner_of(folder)
    tokens = prompt(150)
    item = request("scored", tokens, prompt_logprobs=2, max_tokens=3)
    requests = [request("warm", tokens), item, request("short", prompt(1), prompt_logprobs=1), request("c", prompt(9))]
    events, _ = serve(runner, *requests, budget=budget, depth=depth)
    found = [one for event in events["scored"] for one in event.prompt_logprobs]
    wanted = oracle_of(folder).logits(tokens).log_softmax(-1)
    assert len(found) == len(tokens) - 1
    for place, one in enumerate(found):
        check(one, wanted[place], tokens[place + 1], 2)
    assert not any(event.prompt_logprobs for event in (*events["short"], *events["c"], *events["warm"]))
    assert events["scored"][-1].cached_tokens == 0
    assert answer(events["scored"]) == answer(events["warm"])[:3]
    first = next(i for i, event in enumerate(events["scored"]) if event.token_ids)
    assert not any(event.prompt_logprobs for event in events["scored"][first + 1 :])


def test_prompt_logprobs_are_reported_once_when_preempted(folder: Path) -> None:
    runner = runner_of(folder, num_blocks=24, max_sequences=8)
    requests = [request(str(i), prompt(30 + i), prompt_logprobs=0, max_tokens=50) for i in range(6)]
    events, preempted = serve(runner, *requests, budget=20)
    assert preempted > 0
    for item in requests:
        found = [one for event in events[item.request_id] for one in event.prompt_logprobs]
        wanted = oracle_of(folder).logits(item.prompt).log_softmax(-1)
        assert [one.logprob for one in found] == pytest.approx(
            [float(wanted[i, token]) for i, token in enumerate(item.prompt[1:])], abs=1e-4
        )
