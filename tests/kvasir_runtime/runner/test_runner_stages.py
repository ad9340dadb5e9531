"""Several steps in flight over stages: traffic of every kind, and the answers of one process.

The stages are threads here, with the memory and the code of processes.
"""

import threading
import time
from dataclasses import replace as with_operations
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import EOS_TOKEN_ID, Shape
from fakes.drafter import RecordedDrafter
from fakes.grammars import of_schema
from fakes.mixtures import Story, mixed, request, served, told
from fakes.ranks import group_of
from kvasir_api.state import RuntimeState
from kvasir_runtime.guide import validate, vocabulary
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.wire import EngineRequest

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")

SHAPES = {
    "llama": Shape(num_layers=4, std=0.3, extra={"attention_bias": True}),
    "qwen3_moe": Shape(family="qwen3_moe", num_layers=4, std=0.3),
    "deepseek_v2": Shape(family="deepseek_v2", num_layers=4, std=0.3),
}
RECORD = of_schema(
    {
        "type": "object",
        "properties": {"service": {"enum": ["operator", "gateway"]}, "replicas": {"type": "integer", "maximum": 99}},
        "required": ["service", "replicas"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, shape in SHAPES.items():
        checkpoints.write(root / name, shape)
    return root


def guided(folder: Path) -> list[EngineRequest]:
    """Answers of which a grammar forces many tokens."""
    found = validate.verdict(RECORD, vocabulary.load(folder, 320, (EOS_TOKEN_ID,)))
    wishes = ({}, {"temperature": 1.0, "seed": 5}, {"frequency_penalty": 1.0, "logprobs": 1})
    return [
        request(number, **{"max_tokens": 90, **wishes[number % 3], "grammar": found.grammar})
        for number in range(70, 76)
    ]


def story_of(
    folder: Path,
    requests: list[EngineRequest],
    *,
    group: tuple[Collectives, ...] = (),
    stages: int = 1,
    num_blocks: int = 60,
    drafts: Story | None = None,
    aborts: tuple[int, ...] = (),
) -> tuple[Story, int, int]:
    """What clients hear, how many requests were preempted, and how many drafts were verified. drafts: an earlier story
    whose answers are drafted, some of them wrongly.
    """
    words = vocabulary.load(folder, 320, (EOS_TOKEN_ID,))
    runner = runner_of(
        folder,
        num_blocks=num_blocks,
        max_sequences=8,
        ops=cpu_ops(batch_invariant=True),
        grammars=GrammarCompiler(lambda: words, (EOS_TOKEN_ID,)),
        group=group,
        num_stages=stages,
    )
    told_before = None
    if drafts is not None:
        ids = {name: [token for event in events for token in event.token_ids] for name, events in drafts.items()}
        told_before = RecordedDrafter(
            [[*one.prompt, *ids[one.request_id]] for one in requests if one.request_id in ids]
        )
    scheduler = scheduler_of(runner, budget=120, drafter=told_before, stages=stages)
    story = served(runner, requests, depth=stages, aborts=aborts, scheduler=scheduler)
    state = scheduler.report(RuntimeState())
    return story, state.totals.preemptions, state.totals.drafted_tokens


def heard(story: Story) -> dict[str, tuple[object, ...]]:
    return {name: told(events)[:4] for name, events in story.items()}


@pytest.mark.parametrize(
    ("name", "ranks", "nodes", "stages"),
    [
        *[("llama", 4, 1, 4), ("llama", 4, 1, 2), ("llama", 2, 2, 2), ("qwen3_moe", 3, 3, 3), ("deepseek_v2", 2, 1, 2)],
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                *[("llama", 2, 1, 2), ("qwen3_moe", 2, 1, 2), ("qwen3_moe", 4, 1, 4)],
                *[("deepseek_v2", 4, 1, 4), ("deepseek_v2", 4, 2, 2)],
            )
        ),
    ],
)
def test_traffic_of_every_kind_is_answered_as_by_one_process(
    root: Path, name: str, ranks: int, nodes: int, stages: int
) -> None:
    """Drawn, guided, scored, pooled and searched, in chunks, behind cached prefixes, preempted and with drafts."""
    folder = root / name
    requests = [*mixed(), *guided(folder)]
    alone, *_ = story_of(folder, requests)
    with group_of(ranks, nodes, stages) as group:
        together, num_preempted, _ = story_of(folder, requests, group=group, stages=stages, num_blocks=22)
    assert heard(together) == heard(alone)
    assert num_preempted > 0
    with group_of(ranks, nodes, stages) as group:
        drafted, _, num_drafted = story_of(folder, requests, group=group, stages=stages, drafts=alone)
    assert heard(drafted) == heard(alone)
    assert num_drafted > 100


def test_requests_that_are_aborted_in_flight_change_no_other(root: Path) -> None:
    folder = root / "llama"
    requests = [*mixed(), *guided(folder)]
    alone, *_ = story_of(folder, requests)
    aborts = (9, 14, 15, 16, 23, 31)
    with group_of(2, 1, 2) as group:
        together, *_ = story_of(folder, requests, group=group, stages=2, num_blocks=22, aborts=aborts)
    assert len(together) < len(alone)
    assert heard(together) == {name: told(alone[name])[:4] for name in together}


def test_a_head_of_many_rows_is_sent_when_no_pass_waits_for_the_first_rank(tmp_path: Path) -> None:
    """What rank 0 broadcasts and what the last stage sends are each more than their pipes have room for."""
    folder = checkpoints.write(tmp_path / "wide", Shape(hidden_size=16384))
    with group_of(4, 1, 2) as group:
        runner = runner_of(folder, max_sequences=200, ops=cpu_ops(), group=group, num_stages=2)
        scheduler = scheduler_of(runner, budget=200, stages=2)
        for number in range(200):
            assert scheduler.submit(replace(request(number, max_tokens=4), prompt=(number, 3)), 0.0) is None
        stuck = threading.Timer(30, group[0].abort, ["two ranks wait for each other"])
        stuck.start()
        try:
            story = served(runner, [], depth=2, scheduler=scheduler)
        finally:
            stuck.cancel()
    assert {len(told(events)[0]) for events in story.values()} == {4}
    assert len(story) == 200


class Overlaps:
    """Attention that takes a moment, and the seconds for which several stages were in it at once."""

    def __init__(self, ops: Ops) -> None:
        self.ops = with_operations(ops, attention=self)
        self.together_s = 0.0
        self._attention = ops.attention
        self._lock, self._inside, self._since = threading.Lock(), 0, 0.0

    def __call__(self, *given: Any, **named: Any) -> torch.Tensor:
        self._changes(1)
        time.sleep(0.004)
        self._changes(-1)
        return self._attention(*given, **named)

    def _changes(self, count: int) -> None:
        with self._lock:
            now = time.monotonic()
            self.together_s += now - self._since if self._inside > 1 else 0
            self._inside, self._since = self._inside + count, now


@pytest.mark.parametrize(("count", "in_flight", "overlaps"), [(1, 2, False), (4, 1, False), (4, 2, True)])
def test_stages_compute_at_once_where_several_streams_decode(
    root: Path, count: int, in_flight: int, overlaps: bool
) -> None:
    """Parts of prompts do too."""
    slow = Overlaps(cpu_ops())
    with group_of(2, 1, 2) as group:
        runner = runner_of(root / "llama", max_sequences=8, ops=slow.ops, group=group, num_stages=2)
        scheduler = scheduler_of(runner, budget=120, stages=in_flight)
        served(runner, [request(number) for number in range(count)], depth=in_flight, scheduler=scheduler)
    assert (slow.together_s > 0) == overlaps
