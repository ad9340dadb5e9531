"""A layer with a state finds it again where later requests go on: behind an answer, and where two prompts part."""

import random
from pathlib import Path

import pytest

from fakes import checkpoints, family_checkpoints
from fakes.checkpoints import Shape
from fakes.soak import SoakEngine

SHAPE = Shape(family="qwen3_next", num_layers=4, std=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("models") / "m", SHAPE)


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> SoakEngine:
    """Finds nothing that was computed before."""
    return SoakEngine(folder, folder, num_blocks=400, max_sequences=1, prefix_cache=False)


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=count)


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("qwen3-next", 1),
        ("qwen3-next", 2),
        ("granite4", 1),
        ("bamba", 2),
        ("falcon-h1", 2),
        ("nemotron-h", 2),
        ("mamba2", 2),
    ],
)
def test_each_turn_of_a_chat_goes_on_from_the_state_behind_the_last_one(
    folder: Path, undisturbed: SoakEngine, tmp_path: Path, name: str, depth: int
) -> None:
    if name != "qwen3-next":
        family_checkpoints.write(folder := tmp_path, name)
        undisturbed = SoakEngine(folder, folder, num_blocks=400, max_sequences=1, prefix_cache=False)
    served = SoakEngine(folder, folder, num_blocks=400, max_sequences=4, depth=depth)
    block_size, said = served.runner.facts.block_size, words(1, 75)
    for turn in range(3):
        name, known = f"turn {turn}", len(said)
        said += words(2 + turn, 13) if turn else []
        found = served.answer(name, said, num_tokens=20 + turn)
        assert found == undisturbed.answer(f"{name} of {depth}", said, num_tokens=20 + turn)
        assert served.cached[name] == ((known - 1) // block_size * block_size if turn else 0)
        said += found


def test_who_shares_the_beginning_of_a_prompt_goes_on_from_where_two_of_them_parted(
    folder: Path, undisturbed: SoakEngine
) -> None:
    """A chunk of the first prompt ends at 64, no other one within the 100 tokens that they share."""
    served, shared = SoakEngine(folder, folder, num_blocks=400, max_sequences=4), words(1, 100)
    assert served.runner.facts.block_size == 16
    for number, cached in enumerate((0, 64, 96, 96)):
        prompt = [*shared, *words(10 + number, 70)]
        assert served.answer(str(number), prompt) == undisturbed.answer(str(number), prompt)
        assert served.cached[str(number)] == cached
