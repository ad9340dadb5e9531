"""Rows on a device that nobody waits for say what rows on the host say, token for token, one or two plans in flight."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.mixtures import WISHES, mixed, request, served, told
from fakes.overlapping import Overlapping
from kvasir_runtime.core.plan import Chunk, Insert, Join, StepPlan
from kvasir_runtime.runner.state.device_state import DeviceRowState
from kvasir_runtime.wire import SamplingConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("models") / "qwen3", Shape(family="qwen3", seed=4))


def test_any_mixture_is_answered_as_by_the_host_whatever_is_in_flight(folder: Path) -> None:
    host = served(runner_of(folder), mixed(), depth=1, budget=200)
    assert {len(events) for events in host.values()} > {1}
    for depth in (1, 2, 3):
        device_stream = Overlapping()
        # Blocks for a third of them, so that most are preempted on the way.
        runner = runner_of(folder, num_blocks=44, max_sequences=9, device_stream=device_stream)
        assert isinstance(runner._rows, DeviceRowState)
        device = served(runner, mixed(), depth=depth)
        assert device.keys() == host.keys()
        for name, events in host.items():
            assert told(device[name]) == told(events), (depth, name)
        assert device_stream.num_uploads > 100


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
    runner = runner_of(folder, **sizes, device_stream=Overlapping())
    device = served(runner, requests, depth=2, budget=budget, every=every, aborts=aborts)
    for name, events in device.items():
        assert told(events) == told(host[name])


def test_a_launch_waits_for_nothing_and_sends_one_packet(folder: Path) -> None:
    device_stream = Overlapping()
    runner = runner_of(folder, device_stream=device_stream)
    join = Join(
        row=0,
        request_id="a",
        tokens=(5, 6, 7),
        prompt_tokens=3,
        computed_tokens=0,
        tables=((4, 9),),
        sampling=SamplingConfig(temperature=1.0, top_k=9, seed=1, max_tokens=9),
    )
    flying = [
        runner.launch(StepPlan(step=1, joins=(join,), chunks=(Chunk(row=0, start=0, num_tokens=3, samples=True),)))
    ]
    for step in range(2, 9):  # nothing was collected: every launch reads what the one before it drew
        chunk = Chunk(row=0, start=step + 1, num_tokens=1, samples=True)
        flying.append(runner.launch(StepPlan(step=step, chunks=(chunk,))))
    assert (device_stream.num_uploads, device_stream.num_waits) == (8, [0])
    drawn = [token for one in flying for sampled in runner.collect(one).sampled for token in sampled.tokens]
    stream = Stream(prompt=(5, 6, 7), sampling=SamplingConfig(temperature=1.0, top_k=9, seed=1, max_tokens=9))
    Hand(runner_of(folder)).run([stream], 8)
    assert drawn == stream.answer


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_is_handed_in_is_read_behind_what_was_drawn(folder: Path, in_flight: bool) -> None:
    """A result of a call is inserted behind a token that only the device knows by then, and the answer goes on."""
    sampling = SamplingConfig(temperature=1.0, seed=5, max_tokens=30)
    join = Join(
        row=0, request_id="a", tokens=(5, 6, 7), prompt_tokens=3, computed_tokens=0, tables=((4, 9),), sampling=sampling
    )
    plans = [StepPlan(step=1, joins=(join,), chunks=(Chunk(row=0, start=0, num_tokens=3, samples=True),))]
    insert = Insert(row=0, position=4, tokens=(11, 12, 13))
    plans.append(StepPlan(step=2, inserts=(insert,), chunks=(Chunk(row=0, start=3, num_tokens=4, samples=True),)))
    plans += [StepPlan(step=s, chunks=(Chunk(row=0, start=s + 4, num_tokens=1, samples=True),)) for s in range(3, 9)]
    answers = []
    for device_stream in (None, Overlapping()):
        runner = runner_of(folder, device_stream=device_stream)
        flying, drawn = [], []
        for plan in plans:
            flying.append(runner.launch(plan))
            if device_stream is None or not in_flight:
                drawn.append(runner.collect(flying.pop()))
        drawn += [runner.collect(one) for one in flying]
        answers.append([token for results in drawn for sampled in results.sampled for token in sampled.tokens])
    assert answers[0] == answers[1]
    told = Stream(prompt=(5, 6, 7, answers[0][0], 11, 12, 13), sampling=sampling)
    Hand(runner_of(folder)).run([told], 7)
    assert told.answer == answers[0][1:]
