"""Vectors of prompts against transformers: whole, in chunks, in batches, behind prefix hits and after preemptions."""

import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.oracle import oracle_of
from kvasir_runtime.errors import ModelError
from kvasir_runtime.wire import EngineRequest, PoolingConfig, SamplingConfig

TOLERANCE = 1e-4
SHAPES = {
    "llama": Shape(),
    "mistral": Shape(family="mistral", extra={"sliding_window": 24}),
    "qwen2": Shape(family="qwen2", tied=True),
    "qwen3": Shape(family="qwen3"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str, *, head: str = "ForCausalLM", labels: int = 3, prefix: bool = True) -> Path:
    folder = root / f"{name}-{head}-{labels}-{prefix}"
    return (
        folder if folder.exists() else checkpoints.write(folder, SHAPES[name], head=head, labels=labels, prefix=prefix)
    )


def prompts_of(seed: int, *lengths: int) -> list[tuple[int, ...]]:
    chooser = random.Random(seed)
    return [tuple(chooser.choices(range(3, 320), k=length)) for length in lengths]


def vectors(runner, requests, *, budget, depth=1, prefix_cache=True):
    """The vector of each request by its id, the cached tokens, and how often a sequence was preempted."""
    scheduler = scheduler_of(runner, budget=budget, prefix_cache=prefix_cache)
    found, cached, flying, joins = {}, {}, deque(), 0
    for request in requests:
        assert scheduler.submit(request, 0.0) is None
    for now in range(20_000):
        while len(flying) < depth and (plan := scheduler.plan(float(now))) is not None:
            joins += len(plan.joins)
            flying.append(runner.launch(plan))
        if not flying:
            break
        for event in scheduler.commit(runner.collect(flying.popleft()), float(now)):
            if event.pooled:
                assert event.finish_reason == "stop"
                assert event.token_ids == ()
                found[event.request_id] = np.frombuffer(event.pooled, "<f4")
                cached[event.request_id] = event.cached_tokens
    assert set(cached) >= {request.request_id for request in requests if request.pooling is not None}
    return found, cached, joins - len(requests)


def pooled(prompts, pooling):
    return [
        EngineRequest(request_id=str(i), prompt=prompt, sampling=SamplingConfig(max_tokens=1), pooling=pooling)
        for i, prompt in enumerate(prompts)
    ]


@torch.inference_mode()
def wanted(folder: Path, prompt: tuple[int, ...], kind: str) -> np.ndarray:
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    hidden = model(torch.tensor([list(prompt)]), use_cache=False).last_hidden_state[0]
    return (hidden[-1] if kind == "last" else hidden.mean(dim=0)).numpy()


@pytest.mark.parametrize("kind", ["last", "mean"])
@pytest.mark.parametrize("name", SHAPES)
def test_hidden_states_are_those_of_transformers_however_the_prompt_is_cut(root, name, kind):
    folder, prompts = folder_of(root, name), prompts_of(1, 1, 7, 8, 33, 70)
    want = [wanted(folder, prompt, kind) for prompt in prompts]
    for budget, depth in ((4096, 1), (5, 1), (13, 2)):
        found, _, _ = vectors(runner_of(folder), pooled(prompts, PoolingConfig(kind=kind)), budget=budget, depth=depth)
        for index, expected in enumerate(want):
            np.testing.assert_allclose(found[str(index)], expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", SHAPES)
def test_labels_are_those_of_transformers(root, name, labels):
    folder = folder_of(root, name, head="ForSequenceClassification", labels=labels)
    prompts = prompts_of(2, 4, 30, 61)
    judge = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    runner = runner_of(folder)
    assert (runner.facts.head, runner.facts.num_labels) == ("labels", labels)
    for budget in (4096, 9):
        found, _, _ = vectors(runner_of(folder), pooled(prompts, PoolingConfig(kind="labels")), budget=budget)
        for index, prompt in enumerate(prompts):
            with torch.inference_mode():
                want = judge(torch.tensor([list(prompt)]), use_cache=False).logits[0].numpy()
            np.testing.assert_allclose(found[str(index)], want, atol=TOLERANCE, rtol=TOLERANCE)


def test_logits_of_tokens_are_those_that_are_drawn_from(root):
    folder, prompts = folder_of(root, "qwen3"), prompts_of(3, 20, 5)
    found, _, _ = vectors(
        runner_of(folder), pooled(prompts, PoolingConfig(kind="tokens", token_ids=(9, 4, 300))), budget=8
    )
    for index, prompt in enumerate(prompts):
        want = oracle_of(folder).logits(prompt)[-1][[9, 4, 300]].numpy()
        np.testing.assert_allclose(found[str(index)], want, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_model_without_a_head_is_pooled_under_both_spellings_of_its_names(root, prefix):
    folder, (prompt,) = folder_of(root, "qwen3", head="Model", prefix=prefix), prompts_of(4, 40)
    runner = runner_of(folder)
    assert (runner.facts.head, runner.facts.hidden_size) == ("none", 64)
    found, _, _ = vectors(runner, pooled([prompt], PoolingConfig(kind="mean")), budget=16)
    np.testing.assert_allclose(found["0"], wanted(folder, prompt, "mean"), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(("kind", "cached"), [("last", 32), ("mean", 0)])
def test_a_prefix_hit_is_taken_where_it_is_exact(root, kind, cached):
    folder, (prompt,) = folder_of(root, "llama"), prompts_of(5, 38)
    requests = pooled([prompt], PoolingConfig(kind=kind))
    runner = runner_of(folder)
    scheduler_pairs = [
        requests[0],
        EngineRequest(
            request_id="1", prompt=prompt, sampling=SamplingConfig(max_tokens=1), pooling=PoolingConfig(kind=kind)
        ),
    ]
    found, hits, _ = vectors(runner, scheduler_pairs, budget=19)
    assert hits == {"0": 0, "1": cached}
    np.testing.assert_allclose(found["1"], found["0"], atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2])
def test_vectors_survive_preemption_beside_answers(root, depth):
    folder, prompts = folder_of(root, "qwen2"), prompts_of(6, *range(20, 60, 2))
    answers = [
        EngineRequest(
            request_id=f"a{i}", prompt=prompt, sampling=SamplingConfig(temperature=0.0, max_tokens=40, ignore_eos=True)
        )
        for i, prompt in enumerate(prompts_of(7, *range(20, 50, 5)))
    ]
    requests = [*answers, *pooled(prompts, PoolingConfig(kind="mean"))]
    runner = runner_of(folder, num_blocks=40, max_sequences=12)
    found, _, num_preempted = vectors(runner, requests, budget=24, depth=depth)
    assert num_preempted > 0
    for index, prompt in enumerate(prompts[::4]):
        want = wanted(folder, prompt, "mean")
        np.testing.assert_allclose(found[str(4 * index)], want, atol=TOLERANCE, rtol=TOLERANCE)


def test_attention_in_both_directions_is_refused_of_families_without_it(tmp_path):
    folder = checkpoints.write(tmp_path / "m", Shape(family="gemma2", extra={"is_causal": False}))
    with pytest.raises(ModelError, match=r"attention in both directions .* of gemma2"):
        runner_of(folder)
