"""Rows on a device that nobody waits for say what rows on the host say, token for token, one or two plans in flight."""

import random
from collections import deque
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.overlapping import Overlapping
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import Chunk, Join, Plan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.kernels.ops import CPU
from kvasir_runtime.runner.devicerows import DeviceRows
from kvasir_runtime.runner.runner import Runner
from kvasir_runtime.wire import Beam, Event, Pooling, Request, Sampling

VOCAB = 320
WISHES = (
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("models") / "qwen3", Shape(family="qwen3", seed=4))


def request(number: int, **wishes: object) -> Request:
    chance = random.Random(number)
    shared = tuple(random.Random(0).choices(range(3, VOCAB), k=40))
    prompt = shared[: chance.choice((0, 17, 40))] + tuple(chance.choices(range(3, VOCAB), k=chance.randint(1, 30)))
    beam, pooling = wishes.pop("beam", None), wishes.pop("pooling", None)
    values = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **wishes}
    return Request(
        request_id=str(number),
        prompt=prompt,
        sampling=Sampling(**values),  # type: ignore[arg-type]
        beam=beam,  # type: ignore[arg-type]
        pooling=pooling,  # type: ignore[arg-type]
    )


def mixed() -> list[Request]:
    """Every wish twice, and prompts to be pooled, and searches."""
    requests = [request(number, **WISHES[number % len(WISHES)]) for number in range(2 * len(WISHES))]
    requests += [request(50 + number, pooling=Pooling(kind=kind)) for number, kind in enumerate(("mean", "last"))]
    searched = [request(60, beam=Beam(width=3, answers=("60", "60b", "60c"), early_stopping=False), max_tokens=9)]
    return [*requests[:9], *searched, *requests[9:]]


Story = dict[str, list[Event]]


def served(
    runner: Runner,
    requests: list[Request],
    *,
    depth: int,
    budget: int = 40,
    every: int = 1,
    aborts: Collection[int] = (),
) -> Story:
    """Events by request, aborted ones left out. every: steps between arrivals. aborts: places of requests and steps."""
    facts = runner.facts
    scheduler = Scheduler(
        Limits(
            num_blocks=facts.num_blocks,
            block_size=facts.block_size,
            max_batch_tokens=budget,
            max_sequences=facts.max_sequences,
            max_model_len=facts.max_model_len,
            eos_token_ids=facts.eos_token_ids,
        )
    )
    story: Story = {}
    waiting, flying, gone = deque(requests), deque(), set()
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
    assert scheduler.pool.num_free + scheduler.pool.num_cached == facts.num_blocks
    return {name: events for name, events in story.items() if name not in gone}


def told(events: list[Event]) -> tuple[object, ...]:
    """All that a client hears but for how it was cut into events; logprobs to four places."""
    return (
        [token for event in events for token in event.token_ids],
        [event.finish_reason for event in events][-1],
        [event.stop_token_id for event in events][-1],
        [round(one.logprob, 3) for event in events for one in event.logprobs],
        [one.top_ids for event in events for one in event.logprobs],
        [round(one.logprob, 3) for event in events for one in event.prompt_logprobs],
        [one.rank for event in events for one in event.prompt_logprobs],
        np.frombuffer(b"".join(event.pooled for event in events), dtype="<f4").round(3).tolist(),
    )


def test_any_mixture_is_answered_as_by_the_host_whatever_is_in_flight(folder: Path) -> None:
    host = served(runner_of(folder), mixed(), depth=1, budget=200)
    assert {len(events) for events in host.values()} > {1}
    for depth in (1, 2, 3):
        queue = Overlapping()
        # Blocks for a third of them, so that most are preempted on the way.
        runner = runner_of(folder, num_blocks=44, max_sequences=9, queue=queue)
        assert isinstance(runner._rows, DeviceRows)
        device = served(runner, mixed(), depth=depth)
        assert device.keys() == host.keys()
        for name, events in host.items():
            assert told(device[name]) == told(events), (depth, name)
        assert queue.num_uploads > 100


TRAFFIC = st.lists(st.tuples(st.integers(0, 200), st.integers(0, len(WISHES) - 1)), min_size=1, max_size=9)


@settings(max_examples=12, deadline=None)
@given(
    traffic=TRAFFIC,
    num_blocks=st.integers(14, 40),
    max_sequences=st.integers(1, 6),
    budget=st.integers(6, 60),
    every=st.integers(1, 4),
    aborts=st.sets(st.integers(0, 12), max_size=3),
)
def test_two_in_flight_change_no_answer_of_any_traffic(
    folder: Path, traffic: list[tuple[int, int]], num_blocks: int, max_sequences: int, budget: int, every: int,
    aborts: set[int],
) -> None:  # fmt: skip
    requests = [request(1000 * place + seed, **WISHES[wish]) for place, (seed, wish) in enumerate(traffic)]
    sizes = {"num_blocks": num_blocks, "max_sequences": max_sequences}
    host = served(runner_of(folder), requests, depth=1, budget=256)
    runner = runner_of(folder, **sizes, queue=Overlapping())
    device = served(runner, requests, depth=2, budget=budget, every=every, aborts=aborts)
    for name, events in device.items():
        assert told(events) == told(host[name])


def test_a_launch_waits_for_nothing_and_sends_one_packet(folder: Path) -> None:
    queue = Overlapping()
    runner = runner_of(folder, queue=queue)
    join = Join(
        row=0,
        request_id="a",
        tokens=(5, 6, 7),
        prompt_tokens=3,
        computed_tokens=0,
        blocks=(4, 9),
        sampling=Sampling(temperature=1.0, top_k=9, seed=1, max_tokens=9),
    )
    flying = [runner.launch(Plan(step=1, joins=(join,), chunks=(Chunk(row=0, start=0, num_tokens=3, samples=True),)))]
    for step in range(2, 9):  # nothing was collected: every launch reads what the one before it drew
        chunk = Chunk(row=0, start=step + 1, num_tokens=1, samples=True)
        flying.append(runner.launch(Plan(step=step, chunks=(chunk,))))
    assert (queue.num_uploads, queue.num_waits) == (8, [0])
    drawn = [token for one in flying for sampled in runner.collect(one).sampled for token in sampled.tokens]
    stream = Stream(prompt=(5, 6, 7), sampling=Sampling(temperature=1.0, top_k=9, seed=1, max_tokens=9))
    Hand(runner_of(folder)).run([stream], 8)
    assert drawn == stream.answer


def test_rows_take_the_memory_that_is_said() -> None:
    queue = Overlapping()
    rows = DeviceRows(
        max_sequences=5, max_model_len=100, block_size=16, eos_token_ids=(0,), null_block=77, ops=CPU, queue=queue
    )
    assert rows._memory.numel() * 4 == DeviceRows.num_bytes(5, 100, 16)
    assert rows._tables[rows.nobody].tolist() == [77] * 7
