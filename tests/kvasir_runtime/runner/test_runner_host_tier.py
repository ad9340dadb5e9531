"""Keys, latent rows and states come back from the host's file, and no step waits for the copies."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes import checkpoints
from fakes.checkpoints import Shape
from fakes.serving import request
from fakes.soak import SoakEngine
from kvasir_runtime.runner.kv_offload.file_store import FileStore, open_store

SHAPES = {
    "state": Shape(family="qwen3_next", num_layers=4, std=0.2),
    "latent": Shape(family="deepseek_v2", std=0.2),
    "window": Shape(family="mistral", extra={"sliding_window": 24}, std=0.2),
}
NUM_BLOCKS = {"state": 12, "latent": 20, "window": 20}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, SHAPES[name])


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=count)


def alone(root: Path, name: str) -> SoakEngine:
    """Finds nothing that was computed before."""
    return SoakEngine(folder_of(root, name), root, num_blocks=400, max_sequences=1, prefix_cache=False)


def tiered(root: Path, tmp_path: Path, name: str, **options: Any) -> SoakEngine:
    """Has a file beside a cache for little more than one sequence, and copies whatever copying takes."""
    return SoakEngine(
        folder_of(root, name),
        tmp_path,
        num_blocks=NUM_BLOCKS[name],
        max_sequences=8,
        host_bytes=8 << 20,
        step_s=100.0,
        **options,
    )


@pytest.mark.parametrize("name", SHAPES)
def test_what_was_evicted_comes_back_from_the_host_also_after_a_restart(root: Path, tmp_path: Path, name: str) -> None:
    engine, undisturbed = tiered(root, tmp_path, name), alone(root, name)
    block_size, prompt = engine.runner.facts.block_size, words(1, 110)
    first = engine.answer("first", prompt)
    for number in range(3):
        engine.answer(f"other {number}", words(20 + number, 110), num_tokens=9)
    follow_up = [*prompt, *first, *words(5, 9)]
    whole = undisturbed.answer("follow-up", follow_up)
    for number in range(2):
        assert engine.answer(f"follow-up {number}", follow_up) == whole
        assert engine.cached[f"follow-up {number}"] >= 129 // block_size * block_size
        assert engine.state.kv_host.loaded_tokens > 0
        assert engine.state.kv.pinned_tokens == 0
        engine = tiered(root, tmp_path, name)  # which holds nothing but the file


@pytest.mark.parametrize(("name", "depth"), [("state", 1), ("state", 2), ("latent", 2)])
def test_preempted_sequences_come_back_from_the_host(root: Path, tmp_path: Path, name: str, depth: int) -> None:
    engine, undisturbed = tiered(root, tmp_path, name, depth=depth), alone(root, name)
    prompts = [words(seed, 70 + seed) for seed in range(6)]
    for number, prompt in enumerate(prompts):
        engine.submit(request(str(number), prompt, max_tokens=50, ignore_eos=True))
    while engine.step():
        pass
    for number, prompt in enumerate(prompts):
        assert engine.answers[str(number)] == undisturbed.answer(str(number), prompt, num_tokens=50)
    assert engine.state.totals.preemptions > 0
    assert engine.state.kv_host.loaded_tokens > 0
    assert engine.state.kv.pinned_tokens == 0


class HeldStore:
    """A file whose loads wait until they are let go."""

    def __init__(self, store: FileStore) -> None:
        self._store, self.begun, self.come = store, threading.Event(), threading.Event()

    def get(self, wanted: Sequence[tuple[bytes, memoryview]]) -> list[bool]:
        self.begun.set()
        assert self.come.wait(120)
        return self._store.get(wanted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("depth", [1, 2])
def test_no_step_waits_for_a_copy(root: Path, tmp_path: Path, depth: int) -> None:
    """A load that does not end, and stores behind it: its request waits, and another gets a token in every step."""
    held: list[HeldStore] = []

    def hold(*where: Any) -> HeldStore:
        held.append(HeldStore(open_store(*where)))
        return held[0]

    prompt = words(1, 110)
    whole = tiered(root, tmp_path, "state").answer("first", prompt)
    engine = tiered(root, tmp_path, "state", depth=depth, new_store=hold)
    engine.submit(request("again", prompt, max_tokens=20, ignore_eos=True))
    engine.submit(request("other", words(2, 20), max_tokens=40, ignore_eos=True))
    steps = 0
    while "other" not in engine.ended:
        assert engine.step()
        assert not engine.answers["again"]
        steps += 1
    assert held[0].begun.wait(120)
    assert steps <= 40 + 20 // engine.runner.facts.block_size + 4
    held[0].come.set()
    while engine.step():
        pass
    assert engine.answers["again"] == whole
    assert engine.state.kv_host.loaded_tokens > 0
