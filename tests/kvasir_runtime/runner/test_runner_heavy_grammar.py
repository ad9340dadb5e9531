"""The real library with 150,000 tokens and a grammar whose masks take long: the other rows go on meanwhile."""

import itertools
import json
import string
from pathlib import Path

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import Shape
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.guide import vocabulary
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.guide.matcher import GrammarMatcher
from kvasir_runtime.guide.vocabulary import Vocabulary
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineRequest, Grammar, SamplingConfig

VOCAB_SIZE = 150_000
NUM_MASKS = 28
HEAVY = Grammar(kind="lark", text="start: s\ns: s s s s | s s s | s s | L | L L | M\nL: /[a-z]/\nM: /[ a-z]/\n")
"""So ambiguous that the first mask takes 2 ms of a core, the tenth 9, and the last 130, which is many times a step."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokens are bytes and words, behind a space and not, of up to four letters."""
    shape = Shape(vocab_size=VOCAB_SIZE, max_position_embeddings=256, tied=True)
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "m", shape)
    words = ("".join(word) for size in (2, 3, 4) for word in itertools.product(string.ascii_lowercase, repeat=size))
    either = (token for word in words for token in (word, "Ġ" + word))
    tokens = dict.fromkeys(["<|endoftext|>", *sorted(ByteLevel.alphabet()), *either])
    document = json.loads((folder / "tokenizer.json").read_text())
    ids = {token: number for number, token in enumerate(itertools.islice(tokens, VOCAB_SIZE))}
    document["model"] |= {"vocab": ids, "merges": []}
    document["added_tokens"] = document["added_tokens"][:1]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


class Watched:
    """A matcher that notes how many steps were collected while each of its masks was computed."""

    def __init__(self, matcher: GrammarMatcher, steps: list[int]) -> None:
        self._matcher, self._steps, self.meanwhile = matcher, steps, list[int]()

    def fill(self, mask: np.ndarray) -> None:
        before = len(self._steps)
        self._matcher.fill(mask)
        self.meanwhile.append(len(self._steps) - before)

    def __getattr__(self, name: str) -> object:
        return getattr(self._matcher, name)


class Compiler(GrammarCompiler):
    """Gives watched matchers. steps: those that were collected."""

    def __init__(self, words: Vocabulary) -> None:
        super().__init__(lambda: words, (0,))
        self.steps, self.watched = list[int](), list[Watched]()

    def matcher(self, sampling: SamplingConfig, answered: tuple[int, ...]) -> Watched:
        self.watched.append(Watched(super().matcher(sampling, answered), self.steps))
        return self.watched[-1]


def requests() -> list[EngineRequest]:
    """One that is guided, and three that are not and take longer."""
    found = [("heavy", HEAVY, NUM_MASKS), *((name, None, 200) for name in ("a", "b", "c"))]
    return [
        EngineRequest(
            request_id=name,
            prompt=tuple(range(3 + number, 12 + 2 * number)),
            sampling=SamplingConfig(
                temperature=float(number == 0), max_tokens=num_tokens, seed=number, ignore_eos=True, grammar=grammar
            ),
        )
        for number, (name, grammar, num_tokens) in enumerate(found)
    ]


def served(runner: ModelRunner, scheduler: Scheduler, steps: list[int]) -> dict[str, list[tuple[int, int]]]:
    """By request, its tokens with the numbers of their steps; until the guided one has ended."""
    found: dict[str, list[tuple[int, int]]] = {}
    has_ended = False
    while not has_ended and (plan := scheduler.plan(0.0)) is not None:
        for event in scheduler.commit(runner.collect(runner.launch(plan)), 0.0):
            found.setdefault(event.request_id, []).extend((len(steps), token) for token in event.token_ids)
            has_ended = has_ended or (event.request_id == "heavy" and event.finish_reason is not None)
        steps.append(len(steps))
    return found


def test_others_get_a_token_in_every_step_while_a_heavy_mask_is_computed(folder: Path) -> None:
    words = vocabulary.load(folder, VOCAB_SIZE, (0,))
    compiler = Compiler(words)
    runner = runner_of(folder, num_blocks=256, max_sequences=8, grammars=compiler)
    scheduler = scheduler_of(runner, budget=64)
    for one in requests():
        assert scheduler.submit(one, 0.0) is None
    found = served(runner, scheduler, compiler.steps)
    for name in ("a", "b", "c"):
        numbers = [number for number, _ in found[name]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(found["heavy"]) == NUM_MASKS
    assert max(compiler.watched[0].meanwhile) > 0
    assert set(words.tokenizer.decode_str([token for _, token in found["heavy"]])) <= {" ", *string.ascii_lowercase}
