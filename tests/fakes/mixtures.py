"""Traffic in which every wish meets every other one, driven through the scheduler, and all that its clients hear."""

import random
from collections import deque
from collections.abc import Collection
from typing import Any

import numpy as np

from fakes.by_hand import scheduler_of
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import BeamSearchConfig, EngineOutput, EngineRequest, PoolingConfig, SamplingConfig

VOCAB = 320
WISHES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 2**64 - 5},
    {"temperature": 1.2, "min_p": 0.05},
    {"min_tokens": 9, "ignore_eos": False, "stop_token_ids": tuple(range(3, 160))},
    {"temperature": 1.0, "min_tokens": 5, "ignore_eos": False, "stop_token_ids": tuple(range(3, 100)), "logprobs": 0},
    {"frequency_penalty": 1.0, "repetition_penalty": 1.3, "logprobs": 2},
    {"logit_bias": ((7, 5.0),), "bad_words": ((7, 7), (9,))},
    {"allowed_token_ids": (30, 5, 17, 200), "presence_penalty": 0.5},
    {"prompt_logprobs": 1, "logprobs": 1},
)


def request(number: int, **wishes: object) -> EngineRequest:
    chance = random.Random(number)
    shared = tuple(random.Random(0).choices(range(3, VOCAB), k=40))
    prompt = shared[: chance.choice((0, 17, 40))] + tuple(chance.choices(range(3, VOCAB), k=chance.randint(1, 30)))
    beam, pooling = wishes.pop("beam", None), wishes.pop("pooling", None)
    values = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **wishes}
    return EngineRequest(
        request_id=str(number),
        prompt=prompt,
        sampling=SamplingConfig(**values),  # type: ignore[arg-type]
        beam=beam,  # type: ignore[arg-type]
        pooling=pooling,  # type: ignore[arg-type]
    )


def mixed() -> list[EngineRequest]:
    """Every wish twice, and prompts to be pooled, and searches."""
    requests = [request(number, **WISHES[number % len(WISHES)]) for number in range(2 * len(WISHES))]
    requests += [request(50, pooling=PoolingConfig(kind="mean")), request(51, pooling=PoolingConfig(kind="last"))]
    searched = [
        request(60, beam=BeamSearchConfig(width=3, answers=("60", "60b", "60c"), early_stopping=False), max_tokens=9)
    ]
    return [*requests[:9], *searched, *requests[9:]]


Story = dict[str, list[EngineOutput]]


def served(
    runner: ModelRunner,
    requests: list[EngineRequest],
    *,
    depth: int,
    budget: int = 40,
    every: int = 1,
    aborts: Collection[int] = (),
    scheduler: Scheduler | None = None,
) -> Story:
    """Events by request, aborted ones left out. every: steps between arrivals. aborts: places of requests and steps.
    scheduler: in place of a new one with that budget."""
    scheduler = scheduler or scheduler_of(runner, budget=budget)
    story: Story = {}
    waiting, gone = deque(requests), set()
    flying: deque[Any] = deque()
    for step in range(10_000):
        if waiting and step % every == 0:
            assert scheduler.submit(waiting.popleft(), 0.0) is None
        if step in aborts:
            name = requests[step % len(requests)].request_id
            scheduler.abort(name, 0.0)
            gone.add(name)
        while len(flying) < depth and (plan := scheduler.plan(0.0)) is not None:
            flying.append(runner.launch(plan))
        if flying:
            for event in scheduler.commit(runner.collect(flying.popleft()), 0.0):
                story.setdefault(event.request_id, []).append(event)
        elif not waiting:
            break
    assert not scheduler.has_work
    assert scheduler.pool.num_free + scheduler.pool.num_cached == runner.facts.num_blocks
    return {name: events for name, events in story.items() if name not in gone}


class Near(list[float]):
    """Numbers that equal others which differ by no more than the order of sums explains."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Near) and len(self) == len(other) and bool(np.allclose(self, other, rtol=0, atol=1e-3))

    __hash__ = None


def told(events: list[EngineOutput]) -> tuple[object, ...]:
    """All that a client hears but for how it was cut into events; logprobs and vectors but for their last places."""
    return (
        [token for event in events for token in event.token_ids],
        [event.finish_reason for event in events][-1],
        [event.stop_token_id for event in events][-1],
        Near(one.logprob for event in events for one in event.logprobs),
        [one.top_ids for event in events for one in event.logprobs],
        Near(one.logprob for event in events for one in event.prompt_logprobs),
        [one.rank for event in events for one in event.prompt_logprobs],
        Near(np.frombuffer(b"".join(event.pooled for event in events), dtype="<f4").tolist()),
    )
