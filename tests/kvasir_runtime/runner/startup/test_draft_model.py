"""What a draft model takes at the start, and which models cannot draft."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes import checkpoints, undeclared_checkpoints
from fakes.by_hand import CPU_DEVICE
from fakes.checkpoints import Shape
from fakes.engine_facts import engine_facts
from fakes.tokenizer_families import family
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_api.options import ServeOptions
from kvasir_api.speculation import NO_DRAFTER, DraftModelSize
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.errors import ModelError, StartError
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import draft_model
from kvasir_runtime.runner.startup.build import build, fitted_facts
from kvasir_runtime.runner.startup.capacity import MeasuredMemory
from kvasir_runtime.runner.startup.draft_model import pair_of, same_vocabulary
from kvasir_runtime.wire import SamplingConfig

pytestmark = pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")

SMALL = Shape(num_layers=1, hidden_size=32, num_heads=2, num_kv_heads=1, max_position_embeddings=512, seed=4)
WINDOWS = {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 24}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    checkpoints.write(root / "model", Shape(max_position_embeddings=512))
    checkpoints.write(root / "small", SMALL)
    checkpoints.write(root / "state", Shape(family="qwen3_next", max_position_embeddings=512))
    checkpoints.write(root / "windows", Shape(family="qwen2", max_position_embeddings=512, extra=WINDOWS))
    return root


def built(model: Path, drafter: Path | str, **options: Any) -> ModelRunner:
    given = {"kv_cache_tokens": 1024, "dtype": "float32", **options}
    return build(ServeOptions(model=str(model), device="cpu", speculation=str(drafter), **given), lambda _: None)


def test_facts_count_its_weights_and_a_block_for_each_of_the_models(root: Path) -> None:
    facts = built(root / "model", root / "small").facts
    assert facts.drafter.weights_bytes == 4 * sum(t.numel() for t in checkpoints.random_weights(SMALL).values())
    assert facts.drafter.kv_bytes_per_token == 2 * 16 * 4  # key and value of one head of 16, in float32
    assert built(root / "model", "suffix").facts.drafter == NO_DRAFTER


def test_its_cache_is_taken_from_what_memory_allows() -> None:
    """A block of the model and one of the draft model are one block."""
    memory = MeasuredMemory(limit_bytes=10_000, used_bytes=1000, available_bytes=9000, peak_bytes=0)
    facts = engine_facts(
        num_blocks=0, kv_bytes_per_token=10, max_model_len=8
    )  # 4 tokens in a block, of 8,000 bytes that are left
    options, beside = ServeOptions(model="m", memory_percent=90), DraftModelSize(weights_bytes=1, kv_bytes_per_token=15)
    assert fitted_facts(facts, options, memory).num_blocks == 200
    assert fitted_facts(msgspec.structs.replace(facts, drafter=beside), options, memory).num_blocks == 80


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, 100),
        ({"speculation": "off"}, 200),
        ({"speculation": "suffix", "tensor_parallel_size": 2}, 200),
    ],
)
def test_copies_of_states_are_taken_from_what_memory_allows(changes, want) -> None:
    """Of 8 sequences, one block of a group each: half of 1,600 bytes that are left."""
    memory = MeasuredMemory(limit_bytes=10_000, used_bytes=7400, available_bytes=2600, peak_bytes=0)
    facts = engine_facts(
        num_blocks=0, kv_bytes_per_token=50, max_model_len=8, attentions=(FULL, LayerAttention("state"))
    )
    assert facts.block_bytes == 100
    options = ServeOptions(**{"model": "m", "memory_percent": 90, "speculation": "auto"} | changes)
    assert fitted_facts(facts, options, memory).num_blocks * 100 // 8 == want


@pytest.mark.parametrize(
    ("model", "drafter", "why"),
    [
        ("model", "state", "has no layer with a recurrent state"),
        ("windows", "small", "every layer of the model sees a part of the text only; choose auto or off"),
    ],
)
def test_what_cannot_draft_is_one_line(root: Path, model: str, drafter: str, why: str) -> None:
    with pytest.raises(StartError, match=f"{why}") as caught:
        built(root / model, root / drafter)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"model_impl": "transformers", "tensor_parallel_size": 2}, ""),  # of the model, not of what drafts for it
        ({"model_impl": "kvasir"}, "GPT2LMHeadModel is not supported"),
        ({"quantization": "int8"}, "--quantization cannot be used where transformers computes .*/gpt2 "),
    ],
)
def test_an_undeclared_drafter_is_computed_by_transformers_where_the_options_allow_that(
    root: Path, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    drafter = tmp_path / "gpt2"
    undeclared_checkpoints.write(drafter, "gpt2")
    checkpoints.write_tokenizer(drafter)
    given = ServeOptions(model=str(root / "model"), dtype="float32", speculation=str(drafter), **options)

    def loaded() -> bool:
        facts = engine_facts(weights_bytes=0)
        found = draft_model.load(given, drafter, root / "model", facts, CPU_DEVICE, CPU, lambda _: None)
        return found.loaded.through_transformers

    if not why:
        assert loaded()
        return
    with pytest.raises(StartError, match=why):
        loaded()


def test_a_word_that_is_no_way_to_draft_is_named(root: Path) -> None:
    with pytest.raises(
        ModelError, match="--speculation sufix is none of off, auto, ngram, suffix, mtp, and no directory"
    ):
        built(root / "model", "sufix")


def moved(folder: Path, names_of: Any) -> Path:
    """A checkpoint whose tokens have other ids. names_of: from the names in their order to those in another."""
    checkpoints.write(folder, SMALL)
    document = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    names = names_of(sorted(vocabulary, key=vocabulary.__getitem__))
    document["model"]["vocab"] = {name: number for number, name in enumerate(names)}
    for token in document["added_tokens"]:
        token["id"] = document["model"]["vocab"][token["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def test_a_few_other_tokens_are_no_other_vocabulary(root: Path, tmp_path: Path) -> None:
    few = moved(tmp_path / "few", lambda names: [*names[:-2], names[-1], names[-2]])
    assert same_vocabulary(root / "model", few)
    assert not same_vocabulary(root / "model", moved(tmp_path / "other", lambda names: [*names[100:], *names[:100]]))


def test_a_model_of_another_vocabulary_drafts(root: Path, tmp_path: Path) -> None:
    other = moved(tmp_path / "other", lambda names: [*names[100:], *names[:100]])
    runner = built(root / "model", other)
    assert runner.facts.drafter.kv_bytes_per_token == 2 * 16 * 4
    prompt = (50, 51, 52)
    join = Join(
        row=0,
        request_id="0",
        tokens=prompt,
        prompt_tokens=3,
        computed_tokens=0,
        tables=((0,),),
        sampling=SamplingConfig(temperature=0.0, max_tokens=9),
    )
    first = StepPlan(step=1, joins=(join,), chunks=(Chunk(row=0, start=0, num_tokens=3, samples=True),))
    runner.collect(runner.launch(first))
    drafted = Chunk(row=0, start=3, num_tokens=3, samples=True, drafts=(0, 0))
    (sampled,) = runner.collect(runner.launch(StepPlan(step=2, chunks=(drafted,)))).sampled
    assert sampled.tokens


def test_a_tokenizer_that_changes_texts_is_refused(root: Path, tmp_path: Path) -> None:
    lower = checkpoints.write(tmp_path / "lower", SMALL)
    family("bert").save(str(lower / "tokenizer.json"))
    with pytest.raises(StartError, match=r"the tokenizer of .*lower changes texts.*; name a draft model of the same"):
        pair_of(root / "model", lower, 320, 1600)
