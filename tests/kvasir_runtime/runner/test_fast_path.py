"""The fast path of a step gives what the general path gives, and is taken for all that sample."""

import random
from dataclasses import replace as with_operations
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tokenizers import Tokenizer

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import EOS_TOKEN_ID, Shape
from fakes.mixtures import WISHES, request, served
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.guide import vocabulary
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.decoder_step import DecoderParts, DecoderStep
from kvasir_runtime.kernels.kv_quant import INT4
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import BeamSearchConfig, EngineOutput, Grammar, Logprobs, SamplingConfig

pytestmark = pytest.mark.skipif(
    (found := library()) is None, reason="this processor or installation has no C++ kernels"
)

PLAIN = SamplingConfig(max_tokens=50, temperature=0.0)
TOLD = SamplingConfig(max_tokens=50, temperature=0.0, logprobs=0)
WARM = SamplingConfig(max_tokens=50, temperature=1.0, seed=3)
NUCLEUS = SamplingConfig(max_tokens=50, temperature=0.8, top_p=0.9, seed=4)
TOP_K = SamplingConfig(max_tokens=50, temperature=0.7, top_k=5, min_p=0.02, seed=5)
BIASED = SamplingConfig(max_tokens=50, temperature=0.0, logit_bias=((7, 100.0),))
PENALISED = SamplingConfig(max_tokens=50, temperature=0.9, top_p=0.9, seed=6, repetition_penalty=1.2)
EDITED = (
    PENALISED,
    replace(PLAIN, frequency_penalty=0.7, presence_penalty=-0.3, logit_bias=((9, 1.5), (40, -100.0))),
    replace(NUCLEUS, bad_words=((7,), (11, 12))),
    replace(TOP_K, allowed_token_ids=(5, 300, 17, 4, 250, 90)),
    WARM,
)
WITH_LOGPROBS = (
    replace(WARM, logprobs=2),
    replace(NUCLEUS, logprobs=0, logprob_token_ids=(7, 300)),
    TOLD,
    replace(PENALISED, logprobs=1),
    PLAIN,
)
LETTERS = Grammar(kind="regex", text="[a-d]{1,40}")
FAST = ["batch", "forward"]


class Laps(StepProfiler):
    """Keeps the names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def lap(self, name: str) -> None:
        self.names.append(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model") / "m", Shape(dtype=torch.bfloat16, num_layers=3))


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose logits are capped, hence in float32, and whose layers have norms behind them."""
    shape = Shape(family="gemma2", dtype=torch.bfloat16, num_layers=2, tied=True)
    return checkpoints.write(tmp_path_factory.mktemp("capped") / "m", shape)


def made(
    folder: Path,
    cache_dtype: torch.dtype = torch.bfloat16,
    ops: Ops | None = None,
    grammars: GrammarCompiler | None = None,
) -> ModelRunner:
    return runner_of(folder, ops=ops or cpu_ops(), dtype=torch.bfloat16, cache_dtype=cache_dtype, grammars=grammars)


class WithoutRows:
    """A step that takes tensors alone."""

    def __init__(self, step: DecoderStep) -> None:
        self._step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def row_steps(self, *_: object) -> None:
        return None


def general(ops: Ops) -> Ops:
    """With these every step takes the general path."""

    def built(parts: DecoderParts) -> Any:
        assert ops.decoder_step is not None
        step = ops.decoder_step(parts)
        return None if step is None else WithoutRows(step)

    return with_operations(ops, decoder_step=built)


def compiler(folder: Path) -> GrammarCompiler:
    words = vocabulary.load(folder, 320, (EOS_TOKEN_ID,))
    return GrammarCompiler(lambda: words, (EOS_TOKEN_ID,))


def streams(*samplings: SamplingConfig) -> list[Stream]:
    """Five of different lengths, sampled in these ways in turn."""
    lengths = (1, 70, 15, 16, 17)
    prompts = [tuple(random.Random(length).choices(range(3, 320), k=length)) for length in lengths]
    return [Stream(prompt=prompt, sampling=samplings[i % len(samplings)]) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8, INT4])
@pytest.mark.parametrize(
    "ways",
    [(PLAIN,), (WARM, NUCLEUS, PLAIN, TOP_K), EDITED, WITH_LOGPROBS],
    ids=["greedy", "mixed", "edited", "logprobs"],
)
def test_both_paths_give_the_same_answers(
    folder: Path, ways: tuple[SamplingConfig, ...], cache_dtype: torch.dtype, scattered: bool
) -> None:
    assert_both_paths_agree(folder, ways, cache_dtype, scattered=scattered)


@pytest.mark.parametrize("ways", [(PLAIN,), (*EDITED, *WITH_LOGPROBS)], ids=["greedy", "mixed"])
def test_both_paths_give_the_same_answers_from_capped_logits(capped: Path, ways: tuple[SamplingConfig, ...]) -> None:
    assert_both_paths_agree(capped, ways, torch.bfloat16, scattered=True)


def assert_both_paths_agree(
    folder: Path, ways: tuple[SamplingConfig, ...], cache_dtype: torch.dtype, *, scattered: bool
) -> None:
    answers = []
    for is_fast in (True, False):
        runner, laps = made(folder, cache_dtype, cpu_ops() if is_fast else general(cpu_ops())), Laps()
        runner.use_profiler(laps)
        hand, moving = Hand(runner, scattered=scattered), streams(*ways)
        hand.run(moving[:2], 9)  # whole prompts at once
        hand.run(moving, 15, chunk=6)  # those who join compute several steps before they draw
        hand.preempt(moving[1])
        hand.run(moving, 40)
        assert ("head+draw" in laps.names) != is_fast
        answers.append([(stream.answer, stream.logprobs) for stream in moving])
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer, _ in answers[0]}) > 1
    for stream in moving:
        assert len(stream.logprobs) == (len(stream.answer) if stream.sampling.logprobs >= 0 else 0)


def test_all_that_clients_hear_is_the_same_on_both_paths(folder: Path) -> None:
    """Every wish beside grammars and searches, with logprobs bit for bit."""
    beam = BeamSearchConfig(width=3, answers=("60", "60b", "60c"), early_stopping=False)
    asked = [request(number, **wishes) for number, wishes in enumerate(WISHES)]
    asked += [request(20, grammar=LETTERS, max_tokens=30), request(60, beam=beam, max_tokens=9)]
    asked += [request(21, grammar=LETTERS, temperature=1.0, seed=5, logprobs=3, logit_bias=((70, 4.0),))]
    ops, heard = cpu_ops(batch_invariant=True), []
    for some in (ops, general(ops)):
        # Whole prompts, so that a mask that is late moves answers in time and changes no other result.
        story = served(made(folder, ops=some, grammars=compiler(folder)), asked, depth=1, budget=1024)
        heard.append({name: all_of(events) for name, events in story.items()})
    assert heard[0] == heard[1]
    assert {"0", "20", "21", "60"} <= heard[0].keys()
    assert len(heard[0]["21"][1]) == len(heard[0]["21"][0]) > 0


def all_of(events: list[EngineOutput]) -> tuple[list[int], list[Logprobs], list[Logprobs], float]:
    """Tokens, logprobs of them and of the prompt, score."""
    return (
        [token for event in events for token in event.token_ids],
        [one for event in events for one in event.logprobs],
        [one for event in events for one in event.prompt_logprobs],
        events[-1].score,
    )


def join(row: int, sampling: SamplingConfig) -> Join:
    return Join(
        row=row,
        request_id=str(row),
        tokens=(5, 6, 7),
        prompt_tokens=3,
        computed_tokens=0,
        tables=((row,),),
        sampling=sampling,
    )


def test_a_step_with_a_grammar_and_logprobs_is_one_call_when_its_mask_is_there(folder: Path) -> None:
    """With one thread nothing is computed before `collect`, when the mask is there."""
    assert found is not None
    threads = found.threads
    runner, laps = made(folder, grammars=compiler(folder)), Laps()
    runner.use_profiler(laps)
    found.start(1)
    try:
        samplings = replace(TOLD, grammar=LETTERS), replace(WARM, grammar=LETTERS), PENALISED
        joins = tuple(join(row, sampling) for row, sampling in enumerate(samplings))
        chunks = tuple(Chunk(row=row, start=0, num_tokens=3, samples=True) for row in range(3))
        step = runner.launch(StepPlan(step=1, joins=joins, chunks=chunks))
        assert step.sampling.masks is not None
        for row in step.sampling.masks.rows or ():
            assert row is not None
            row.task.ended.result(60)
        first, second, _ = runner.collect(step).sampled
    finally:
        found.start(threads)
    assert laps.names == FAST
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert {*tokenizer.decode([*first.tokens, *second.tokens])} <= {*"abcd"}
    assert len(first.logprobs) == 1


def test_a_request_with_more_takes_the_others_along_and_back(folder: Path) -> None:
    runner, laps = made(folder), Laps()
    runner.use_profiler(laps)
    hand, (alone, other, *_) = Hand(runner), streams(PLAIN)
    hand.run([alone], 3)
    assert laps.names == FAST * 3
    for sampling in (WARM, NUCLEUS, BIASED, PENALISED, TOLD):
        guest = Stream(prompt=other.prompt, sampling=sampling)
        laps.names.clear()
        hand.run([alone, guest], len(alone.answer) + 2)
        assert laps.names == FAST * (len(laps.names) // 2)
        hand.release(guest)
    quiet = Stream(prompt=alone.prompt)
    Hand(made(folder)).run([quiet], len(alone.answer))
    assert alone.answer == quiet.answer


def test_an_answer_that_may_not_end_yet_does_not(folder: Path) -> None:
    runner, laps = made(folder), Laps()
    runner.use_profiler(laps)
    stream = Stream(prompt=(5, 6, 7))
    Hand(runner).run([stream], 1)
    end = replace(PLAIN, stop_token_ids=(stream.answer[0],))
    free, held = Stream(prompt=(5, 6, 7), sampling=end), Stream(prompt=(5, 6, 7), sampling=end, min_tokens=2)
    Hand(runner).run([free, held], 4)
    assert free.answer[0] == stream.answer[0]
    assert stream.answer[0] not in held.answer[:2]
    assert laps.names == FAST * 5
