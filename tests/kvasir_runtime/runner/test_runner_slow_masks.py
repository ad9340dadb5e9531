"""The mask of a slow grammar delays its own row and no other, and no answer changes for it."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.drafter import RecordedDrafter
from fakes.overlapping import Overlapping
from fakes.recording import OPS, Recordings
from kvasir_runtime.core.speculation.drafters import Drafter
from kvasir_runtime.guide.matcher import AcceptedTokens
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.sampling.grammar_masks import GrammarMasks
from kvasir_runtime.wire import BeamSearchConfig, EngineRequest, Grammar, SamplingConfig

GRAMMAR = Grammar(kind="json_object")
SLOW = Grammar(kind="regex", text="slow")
WAYS = {
    "host": (1, {}),
    "cpp": (1, {"ops": cpu_ops(), "dtype": torch.bfloat16}),
    "device": (2, {"ops": OPS, "device_stream": Overlapping}),
    "graphs": (2, {"ops": OPS, "device_stream": Overlapping, "new_capturer": Recordings}),
    "state": (1, {}),
    "state-device": (2, {"device_stream": Overlapping}),
    "state-three": (3, {"device_stream": Overlapping}),
}
"""With the plans in flight. A state cannot be taken back to the token before."""


class Matcher:
    """Allows the ids of one half of the vocabulary in turns; before a mask, `hold` may wait."""

    is_checked = False
    error = ""

    def __init__(
        self, answered: Sequence[int], hold: Callable[[int], None], behind: Callable[[int], None] | None = None
    ) -> None:
        """behind: in place of hold, of a copy that goes along drafts."""
        self.position, self._hold, self._behind = len(answered), hold, behind

    def fill(self, mask: np.ndarray) -> None:
        self._hold(self.position)
        mask[:] = 0
        half = mask.shape[1] // 2
        (mask[:, :half] if self.position % 2 else mask[:, half:]).fill(-1)

    def follow(self, draft: int) -> bool:
        self.position += 1
        return (draft < 160) != self.position % 2

    def fork(self, token_ids: Sequence[int]) -> "Matcher":
        return Matcher((*range(self.position), *token_ids), self._behind or self._hold)

    def take(self, token: int, room: int) -> AcceptedTokens:
        half = 160 if self.position % 2 else 0
        assert half == 0 or token < 160
        self.position += 1
        return AcceptedTokens((token,))


class Compiler:
    """Gives matchers of which those for slow requests wait before each mask."""

    vocab_size = 320

    def __init__(self, hold: Callable[[int], None], behind: Callable[[int], None] | None = None) -> None:
        self._hold, self._behind = hold, behind

    def matcher(self, sampling: SamplingConfig, answered: Sequence[int]) -> Matcher:
        is_slow = sampling.grammar == SLOW
        return Matcher(answered, self._hold, self._behind) if is_slow else Matcher(answered, lambda _: None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for family in ("llama", "qwen3_next"):
        checkpoints.write(root / family, Shape(family=family, max_position_embeddings=128, std=0.3))
    return root


def made(root: Path, way: str, hold: Callable[[int], None]) -> ModelRunner:
    folder, options = root / ("qwen3_next" if way.startswith("state") else "llama"), dict(WAYS[way][1])
    if "device_stream" in options:
        options["device_stream"] = options["device_stream"]()
    runner = runner_of(folder, num_blocks=64, max_sequences=8, **options)
    runner._grammar_masks = GrammarMasks(Compiler(hold), runner._grammar_masks._ops, runner._stream)  # type: ignore[arg-type]
    runner._sampler._grammar_masks = runner._grammar_masks
    runner.capture_graphs()
    return runner


def requests() -> list[EngineRequest]:
    """One that is slow, one that is guided too, and three plain ones."""
    found = [("slow", 1, SLOW), ("guided", 2, GRAMMAR), ("a", 3, None), ("b", 4, None), ("c", 5, None)]
    return [
        EngineRequest(
            request_id=name,
            prompt=tuple(range(3 + seed, 20 + 3 * seed)),
            sampling=SamplingConfig(temperature=0.8, max_tokens=12, seed=seed, ignore_eos=True, grammar=grammar),
        )
        for name, seed, grammar in found
    ]


def answers(
    runner: ModelRunner,
    depth: int,
    *,
    after: Callable[[dict[str, list[int]]], None],
    width: int = 0,
    drafter: Drafter | None = None,
) -> dict[str, list[int]]:
    """Tokens by answer. after: called with those so far behind every step. width: beams of the slow one."""
    scheduler = scheduler_of(runner, budget=64, speculation="recorded" if drafter else "off", drafter=drafter)
    slow, *others = requests()
    if width:
        beam = BeamSearchConfig(width=width, answers=("slow", *(f"slow/{number}" for number in range(1, width))))
        slow = msgspec.structs.replace(slow, beam=beam)
    names = slow.beam.answers if slow.beam else ("slow",)
    found: dict[str, list[int]] = {name: [] for name in (*names, *(other.request_id for other in others))}
    for one in (slow, *others):
        assert scheduler.submit(one, 0.0) is None
    flying: deque = deque()
    for _ in range(5000):
        while len(flying) < depth and (plan := scheduler.plan(0.0)) is not None:
            flying.append(runner.launch(plan))
        if not flying:
            break
        for event in scheduler.commit(runner.collect(flying.popleft()), 0.0):
            assert event.finish_reason in (None, "length")
            found[event.request_id] += event.token_ids
        after(found)
    assert not scheduler.has_work
    assert scheduler.pool.num_pinned == 0
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_that_does_not_come_delays_its_own_row_alone(root: Path, way: str) -> None:
    """Its fourth mask is held until all other requests have ended."""
    depth, come = WAYS[way][0], threading.Event()

    def hold(position: int) -> None:
        assert position != 3 or come.wait(60)

    def after(found: dict[str, list[int]]) -> None:
        others = [len(tokens) for name, tokens in found.items() if name != "slow"]
        if min(others) == 12 and not come.is_set():
            assert len(found["slow"]) <= 3, "of those before it too, none is waited for"
            come.set()

    whole = answers(made(root, way, lambda _: None), depth, after=lambda _: None)
    assert answers(made(root, way, hold), depth, after=after) == whole
    assert come.is_set()


FAMILIES = {"llama": torch.bfloat16, "qwen3_next": torch.float32}
"""With drafts: the whole step in one call, and with states, which are taken back where a mask before drafts is late."""


def drafted(root: Path, family: str, hold: Callable[[int], None], behind: Callable[[int], None]) -> ModelRunner:
    """behind: in place of hold, before a mask behind a draft."""
    ops, dtype = cpu_ops(batch_invariant=True), FAMILIES[family]
    runner = runner_of(root / family, num_blocks=64, max_sequences=8, ops=ops, dtype=dtype)
    runner._grammar_masks = GrammarMasks(Compiler(hold, behind), runner._grammar_masks._ops, runner._stream)  # type: ignore[arg-type]
    runner._sampler._grammar_masks = runner._grammar_masks
    return runner


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.skipif(library() is None, reason="without C++ kernels there are no drafts")
def test_a_mask_behind_a_draft_that_does_not_come_delays_no_row(root: Path, family: str) -> None:
    """The answer goes on without what follows the draft; each holds one of the threads."""
    whole = answers(drafted(root, family, lambda _: None, lambda _: None), 1, after=lambda _: None)
    come, held = threading.Event(), list[int]()

    def behind(position: int) -> None:
        if len(held) < 3:
            held.append(position)
            assert come.wait(60)

    drafter = RecordedDrafter([[*one.prompt, *whole[one.request_id]] for one in requests()])
    try:
        found = answers(drafted(root, family, lambda _: None, behind), 1, after=lambda _: None, drafter=drafter)
    finally:
        come.set()
    assert found == whole
    assert held


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.skipif(library() is None, reason="without C++ kernels there are no drafts")
def test_a_mask_that_does_not_come_before_drafts_delays_its_own_row_alone(root: Path, family: str) -> None:
    """The row has no drafts in the step that samples behind the mask."""
    whole = answers(drafted(root, family, lambda _: None, lambda _: None), 1, after=lambda _: None)
    come, held = threading.Event(), list[int]()

    def hold(position: int) -> None:
        if position >= 3:
            held.append(position)
            assert come.wait(60)

    def after(found: dict[str, list[int]]) -> None:
        if min(len(tokens) for name, tokens in found.items() if name != "slow") == 12 and not come.is_set():
            assert len(found["slow"]) == held[0]
            come.set()

    drafter = RecordedDrafter([[*one.prompt, *whole[one.request_id]] for one in requests()])
    assert answers(drafted(root, family, hold, lambda _: None), 1, after=after, drafter=drafter) == whole
    assert come.is_set()


@pytest.mark.parametrize("way", WAYS)
def test_a_row_alone_with_its_mask_waits_for_it(root: Path, way: str) -> None:
    """Nothing else is left to do, and the engine still gets to its messages."""
    depth, come, steps = WAYS[way][0], threading.Event(), []

    def hold(position: int) -> None:
        assert position != 11 or come.wait(60)

    def after(found: dict[str, list[int]]) -> None:
        if len(found["slow"]) == 11:
            steps.append(1)
            if len(steps) == 4:
                come.set()

    whole = answers(made(root, way, lambda _: None), depth, after=lambda _: None)
    assert answers(made(root, way, hold), depth, after=after) == whole


@pytest.mark.parametrize("way", WAYS)
def test_beams_wait_for_the_mask_of_one_of_them_and_others_do_not(root: Path, way: str) -> None:
    depth, come = WAYS[way][0], threading.Event()

    def hold(position: int) -> None:
        assert position != 3 or come.wait(60)

    def after(found: dict[str, list[int]]) -> None:
        if min(len(tokens) for name, tokens in found.items() if not name.startswith("slow")) == 12:
            assert come.is_set() or not any(found[name] for name in ("slow", "slow/1", "slow/2"))
            come.set()

    whole = answers(made(root, way, lambda _: None), depth, after=lambda _: None, width=3)
    assert len({tuple(whole[name]) for name in ("slow", "slow/1", "slow/2")}) == 3
    assert answers(made(root, way, hold), depth, after=after, width=3) == whole
    assert come.is_set()
