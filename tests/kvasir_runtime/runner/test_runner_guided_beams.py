"""Beams that follow grammars: every answer is one of its grammar's, and they are those of a constrained search."""

import json
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from fakes import checkpoints
from fakes.by_hand import last_outputs, runner_of
from fakes.checkpoints import EOS_TOKEN_ID, Shape
from fakes.grammars import CHECKED, of_schema
from fakes.oracle import oracle_of
from fakes.overlapping import Overlapping
from fakes.recording import OPS, Recordings
from kvasir_runtime.guide import validate, vocabulary
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.guide.vocabulary import Vocabulary
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import BeamSearchConfig, EngineOutput, EngineRequest, Grammar, SamplingConfig

PROMPT = tuple(range(40, 61))
FLAG = {"type": "boolean"}
COLOURS = Grammar(kind="choice", text='["red", "green", "grey", "blue"]')
GRAMMARS = {
    "choice": COLOURS,
    "regex": Grammar(kind="regex", text="[ab]{2,5}(x|yz)?"),
    "object": of_schema({"type": "object", "properties": {"a": FLAG, "b": FLAG}, "additionalProperties": False}),
    "array": of_schema({"type": "array", "items": {"enum": [1, 12, None]}, "maxItems": 3}),
    "endless": Grammar(kind="regex", text="[a-d]*"),
}
WAYS = {
    "host": (1, {}),
    "cpp": (1, {"ops": cpu_ops()}),
    "device": (2, {"ops": OPS, "device_stream": Overlapping}),
    "graphs": (2, {"ops": OPS, "device_stream": Overlapping, "new_capturer": Recordings}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(max_position_embeddings=128, std=0.3)
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", shape)


@pytest.fixture(scope="module")
def words(folder: Path) -> Vocabulary:
    return vocabulary.load(folder, 320, (EOS_TOKEN_ID,))


@pytest.fixture(scope="module")
def runner(folder: Path, words: Vocabulary) -> ModelRunner:
    return made(folder, words, "host")


def made(folder: Path, words: Vocabulary, way: str, **rest: object) -> ModelRunner:
    options = {name: value() if name == "device_stream" else value for name, value in WAYS[way][1].items()}
    grammars = GrammarCompiler(lambda: words, (EOS_TOKEN_ID,))
    runner = runner_of(folder, grammars=grammars, **{"num_blocks": 64, **options, **rest})  # type: ignore[arg-type]
    runner.capture_graphs()
    return runner


def accepted(grammar: Grammar, words: Vocabulary) -> Grammar:
    """As the engine takes it."""
    found = validate.verdict(grammar, words)
    assert found.error == ""
    return found.grammar or grammar


def searching(name: str, width: int, grammar: Grammar, *, num_tokens: int = 24, **rest: object) -> EngineRequest:
    beam = BeamSearchConfig(width=width, answers=tuple(f"{name}/{number}" for number in range(width)))
    sampling = SamplingConfig(max_tokens=num_tokens, logprobs=0, grammar=grammar, **rest)  # type: ignore[arg-type]
    return EngineRequest(request_id=f"{name}/0", prompt=PROMPT, sampling=sampling, beam=beam)


def run(
    runner: ModelRunner, requests: list[EngineRequest], *, depth: int = 1, budget: int = 64
) -> dict[str, EngineOutput]:
    """The last outputs by id."""
    return last_outputs(runner, requests, budget=budget, depth=depth)[0]


def found(ended: dict[str, EngineOutput], request: EngineRequest) -> list[tuple[tuple[int, ...], float]]:
    """Tokens with the one that ended them, and scores, of the answers that there are."""
    outputs = [ended[name] for name in request.beam.answers]
    assert not [output.message for output in outputs if output.finish_reason == "error"]
    kept = [output for output in outputs if output.score > float("-inf")]
    stops = [() if output.stop_token_id is None else (output.stop_token_id,) for output in kept]
    return [((*output.token_ids, *stop), output.score) for output, stop in zip(kept, stops, strict=True)]


@torch.inference_mode()
def judged(folder: Path, words: Vocabulary, request: EngineRequest) -> list[tuple[tuple[int, ...], float]]:
    """What transformers answers where it may choose only tokens that the grammar allows."""
    compiled, mask = words.matcher(request.sampling.grammar), allocate_token_bitmask(1, 320)

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        matcher = compiled.deep_copy()
        matcher.consume_tokens(ids.tolist()[len(request.prompt) :])
        if matcher.is_error():  # a beam that it has marked as impossible
            return [EOS_TOKEN_ID]
        fill_next_token_bitmask(matcher, mask, 0)
        return np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[:320]).tolist()

    ids = torch.tensor([request.prompt])
    done = oracle_of(folder)._model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=request.beam.width,
        num_return_sequences=request.beam.width,
        max_new_tokens=request.sampling.max_tokens,
        eos_token_id=EOS_TOKEN_ID,
        pad_token_id=1,
        do_sample=False,
        prefix_allowed_tokens_fn=allowed,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = []
    for row, score in zip(done.sequences.tolist(), done.sequences_scores.tolist(), strict=True):
        tail = row[len(request.prompt) :]
        end = tail.index(EOS_TOKEN_ID) + 1 if EOS_TOKEN_ID in tail else len(tail)
        if score > -1e6:
            answers.append((tuple(tail[:end]), score))
    return answers


@pytest.mark.parametrize("width", [2, 3, 6])
@pytest.mark.parametrize("name", GRAMMARS)
def test_answers_are_those_of_a_constrained_search(
    folder: Path, words: Vocabulary, runner: ModelRunner, name: str, width: int
) -> None:
    request = searching("a", width, accepted(GRAMMARS[name], words), num_tokens=12 if name == "endless" else 24)
    answers, want = found(run(runner, [request]), request), judged(folder, words, request)
    assert [tokens for tokens, _ in answers] == [tokens for tokens, _ in want]
    assert [score for _, score in answers] == pytest.approx([score for _, score in want], abs=1e-4)
    assert len(answers) == width or name == "choice"


def small_schemas() -> st.SearchStrategy[dict[str, object]]:
    """Schemas whose answers are short, nested up to twice."""
    leaves = st.sampled_from(
        [FLAG, {"type": "null"}, {"enum": ["a", "ab", 3]}, {"type": "integer", "minimum": 3, "maximum": 14},
         {"type": "string", "pattern": "^[ab]{1,2}$"}]
    )  # fmt: skip

    def nested(inner: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
        arrays = st.builds(
            lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 2)
        )
        objects = st.builds(
            lambda fields, required: {
                "type": "object",
                "properties": fields,
                "required": [name for name in fields if name in required],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
            st.sets(st.sampled_from("xyz")),
        )
        return st.one_of(arrays, objects, st.builds(lambda *many: {"anyOf": [*many]}, inner, inner))

    return st.recursive(leaves, nested, max_leaves=4)


@given(schema=small_schemas(), width=st.integers(1, 5), num_tokens=st.integers(1, 24))
@settings(max_examples=40, deadline=None)
def test_every_beam_fits_its_schema_and_none_is_missed(
    folder: Path, words: Vocabulary, runner: ModelRunner, schema: dict[str, object], width: int, num_tokens: int
) -> None:
    compact = {**schema, "x-guidance": {"whitespace_flexible": False}}
    request = searching("a", width, accepted(of_schema(compact), words), num_tokens=num_tokens)
    ended = run(runner, [request])
    for output in (ended[name] for name in request.beam.answers):
        if output.finish_reason == "stop" and output.score > float("-inf"):
            jsonschema.validate(json.loads(words.tokenizer.decode_str(list(output.token_ids))), schema)
    if width > 1:  # one beam is a greedy answer, which transformers gives without scores
        want = judged(folder, words, request)
        assert [tokens for tokens, _ in found(ended, request)] == [tokens for tokens, _ in want]


@pytest.mark.parametrize("schema", [*CHECKED["uniqueItems"], *CHECKED["patternProperties"]], ids=str)
def test_beams_are_checked_where_a_grammar_allows_more_than_its_schema(
    words: Vocabulary, runner: ModelRunner, schema: dict[str, object]
) -> None:
    grammar = accepted(of_schema({**schema, "x-guidance": {"whitespace_flexible": False}}), words)
    assert grammar.check
    request = searching("a", 4, grammar, num_tokens=60)
    outputs = [output for output in run(runner, [request]).values() if output.score > float("-inf")]
    assert "stop" in {output.finish_reason for output in outputs}
    for output in outputs:
        assert output.finish_reason != "error", output.message
        if output.finish_reason == "stop":
            jsonschema.validate(json.loads(words.tokenizer.decode_str(list(output.token_ids))), schema)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("budget", [9, 64])
def test_neighbours_preemptions_and_devices_change_nothing(
    folder: Path, words: Vocabulary, runner: ModelRunner, way: str, budget: int
) -> None:
    searches = [
        searching(name, 2 + number, accepted(one, words)) for number, (name, one) in enumerate(GRAMMARS.items())
    ]
    plain = SamplingConfig(temperature=0.8, max_tokens=40, ignore_eos=True, seed=1)
    guided = SamplingConfig(temperature=0.8, max_tokens=40, seed=2, grammar=accepted(GRAMMARS["endless"], words))
    others = [
        EngineRequest(request_id="plain", prompt=PROMPT[::-1], sampling=plain),
        EngineRequest(request_id="guided", prompt=PROMPT[1:], sampling=guided),
    ]
    alone = {one.request_id: run(runner, [one]) for one in (*searches, *others)}
    crowded = made(folder, words, way, num_blocks=28, max_sequences=9)
    together = run(crowded, [searches[0], others[0], *searches[1:], others[1]], budget=budget, depth=WAYS[way][0])
    for one in searches:
        assert found(together, one) == [
            (tokens, pytest.approx(score, abs=1e-4)) for tokens, score in found(alone[one.request_id], one)
        ]
    for one in others:
        assert together[one.request_id].finish_reason == alone[one.request_id][one.request_id].finish_reason


def test_an_end_that_nothing_else_can_follow_ends_a_beam_whatever_the_request_says(
    words: Vocabulary, runner: ModelRunner
) -> None:
    """min_tokens and ignore_eos hold as long as the grammar lets something else follow."""
    closed, open_ended = accepted(COLOURS, words), accepted(GRAMMARS["endless"], words)
    early = searching("a", 3, closed, min_tokens=20)
    ignoring = searching("b", 3, closed, ignore_eos=True)
    late = searching("c", 3, open_ended, num_tokens=9, min_tokens=6)
    never = searching("d", 3, open_ended, num_tokens=9, ignore_eos=True)
    ended = run(runner, [early, ignoring, late, never])
    for request in (early, ignoring):
        texts = [words.tokenizer.decode_str(list(tokens[:-1])) for tokens, _ in found(ended, request)]
        assert texts
        assert set(texts) <= {"red", "green", "grey", "blue"}
    assert min(len(tokens) for tokens, _ in found(ended, late)) > 6
    assert {len(tokens) for tokens, _ in found(ended, never)} == {9}


def test_logprobs_are_the_models_and_alternatives_those_that_the_grammar_allows(
    folder: Path, words: Vocabulary, runner: ModelRunner
) -> None:
    request = searching("a", 3, accepted(GRAMMARS["regex"], words))
    request = msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, logprobs=2))
    ended = run(runner, [request])
    for output in (ended[name] for name in request.beam.answers):
        logits = oracle_of(folder).logits([*PROMPT, *output.token_ids])[len(PROMPT) - 1 : -1].log_softmax(dim=-1)
        for token, shown, want in zip(output.token_ids, output.logprobs, logits, strict=True):
            assert shown.logprob == pytest.approx(want[token].item(), abs=1e-4)
            assert 0 < len(shown.top_ids) <= 2
            assert list(shown.top) == pytest.approx(want[list(shown.top_ids)].tolist(), abs=1e-4)
            texts = [words.tokenizer.decode_str([one]) for one in shown.top_ids if one != EOS_TOKEN_ID]
            assert all(set(text) <= set("abxyz") for text in texts)


def test_a_grammar_that_fails_in_the_engine_ends_all_its_answers_and_nothing_else(
    words: Vocabulary, runner: ModelRunner
) -> None:
    request = searching("a", 3, Grammar(kind="regex", text="("))
    other = searching("b", 3, accepted(COLOURS, words))
    ended = run(runner, [request, other])
    assert {ended[name].finish_reason for name in request.beam.answers} == {"error"}
    assert all("regex" in ended[name].message for name in request.beam.answers)
    assert found(ended, other)
