"""Architectures that no family declares: answers are those of transformers' own `generate`, however steps are cut.

Whole and in chunks, behind a cached prefix, preempted, in a batch with others, and by the real scheduler.
"""

import copy
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface

from fakes import undeclared_checkpoints
from fakes.by_hand import CPU_DEVICE, Hand, runner_with, scheduler_of
from fakes.mixed_streams import mixed_streams
from fakes.undeclared_checkpoints import MODELS, VOCAB, is_generated, wrong_tokens
from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import transformers_decoder
from kvasir_runtime.models.registry import declared
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.load_model import LoadedModel, load_model
from kvasir_runtime.wire import EngineRequest, SamplingConfig

NAMES = pytest.mark.parametrize("name", MODELS)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 10_007 + length).choices(range(3, VOCAB), k=length))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folder and judge of a name."""
    root = tmp_path_factory.mktemp("undeclared")
    return cache(lambda name: (root / name, undeclared_checkpoints.write(root / name, name)))


def loaded(folder: Path, ops: Ops = CPU, **given: Any) -> LoadedModel:
    options = ServeOptions(model=str(folder), dtype="float32", model_impl="transformers", **given)
    return load_model(options, folder, CPU_DEVICE, ops, lambda _: None)


def runner(folder: Path, ops: Ops = CPU, **sizes: Any) -> ModelRunner:
    model = loaded(folder, ops)
    return runner_with(model.model, eos_token_ids=(), limit=model.max_model_len, ops=ops, **sizes)


@NAMES
def test_answers_are_those_of_transformers(judged: Any, name: str) -> None:
    folder, judge = judged(name)
    assert (declared(judge.config.architectures) is None) == (name not in undeclared_checkpoints.CHOSEN)
    hand = Hand(runner(folder, cpu_ops()))
    streams = mixed_streams(hand, prompt)
    for stream in streams:
        assert wrong_tokens(judge, stream.prompt, stream.answer) == []
    assert len({token for stream in streams[4:] for token in stream.answer}) > 2


@pytest.mark.parametrize("name", ["gpt2", "exaone4-windows"])
def test_the_scheduler_gives_the_answers_of_generate(judged: Any, name: str) -> None:
    """In few blocks, so that some are preempted; with a prefix that another request has computed."""
    folder, judge = judged(name)
    texts = [prompt(5 + index) for index in range(12)]
    texts.append(texts[-1] + prompt(9))
    answers, joins, cached = answered(runner(folder, num_blocks=20, max_sequences=6), texts, 30)
    assert joins > len(texts)
    assert cached[-1] == 16
    for text, answer in zip(texts, answers, strict=True):
        assert wrong_tokens(judge, text, answer) == []
    assert all(is_generated(judge, text, answer) for text, answer in zip(texts[-3:], answers[-3:], strict=True))


def answered(runner: ModelRunner, texts: list[tuple[int, ...]], count: int) -> tuple[list[list[int]], int, list[int]]:
    """Greedy answers of count tokens, the last text's behind the others; how many joins there were, and for each the
    tokens that were cached."""
    scheduler, found, cached = scheduler_of(runner, budget=16), [list[int]() for _ in texts], [0] * len(texts)
    sampling = SamplingConfig(temperature=0.0, max_tokens=count, ignore_eos=True)
    joins, now, last = 0, 0.0, len(texts) - 1
    for index, text in enumerate(texts[:last]):
        assert scheduler.submit(EngineRequest(request_id=str(index), prompt=text, sampling=sampling), now) is None
    while scheduler.has_work or not found[last]:
        if not scheduler.has_work:
            request = EngineRequest(request_id=str(last), prompt=texts[last], sampling=sampling)
            assert scheduler.submit(request, now) is None
        now += 1.0
        plan = scheduler.plan(now)
        assert plan is not None
        joins += len(plan.joins)
        for output in scheduler.commit(runner.collect(runner.launch(plan)), now):
            found[int(output.request_id)] += output.token_ids
            cached[int(output.request_id)] = output.cached_tokens
    assert scheduler.pool.num_pinned == 0
    return found, joins, cached


def test_overrides_reach_the_angles(tmp_path: Path) -> None:
    judge: Any = undeclared_checkpoints.write(tmp_path, "gemma", rope_theta=50.0)
    config, text = json.loads((tmp_path / "config.json").read_text()), prompt(60)
    ropes = config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": ropes | {"rope_theta": 10_000.0}}))
    with torch.inference_mode():
        want = judge(torch.tensor([text]), use_cache=False).logits[0]
    for overrides, same in (("", False), (json.dumps({"rope_parameters": ropes}), True)):
        model = loaded(tmp_path, hf_overrides=overrides).model
        logits = runner_with(model, eos_token_ids=(), limit=256).logits(text)
        assert torch.allclose(logits, want, atol=1e-4) == same


def test_scales_behind_the_layers_are_the_models_own(judged: Any) -> None:
    folder, judge = judged("granite-moe")
    text = prompt(9)
    with torch.inference_mode():
        want = judge(torch.tensor([text]), use_cache=False).logits[0]
    assert judge.config.logits_scaling == 4.0
    assert torch.allclose(runner(folder).logits(text), want, atol=1e-4)


def test_places_in_a_step_are_no_positions(judged: Any) -> None:
    """Which no short text would show, where they count from far on."""
    _, judge = judged("gpt2")
    changed = copy.deepcopy(judge)
    block = changed.transformer.h[0]
    own = block.forward

    def forward(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        far = torch.arange(hidden.shape[1]) > 8192
        return own(hidden + far[:, None], *args, **kwargs)

    block.forward = forward
    transformers_decoder.registered(AttentionInterface)
    for model in (copy.deepcopy(judge), changed):
        model.set_attn_implementation(transformers_decoder.ATTENTION)
        if model is changed:
            with pytest.raises(ModelError, match="counts places of tokens in a step"):
                transformers_decoder.observed(model, 3)
        else:
            assert transformers_decoder.observed(model, 3).vocab_size == VOCAB


@pytest.mark.parametrize("given", ["indices", "position_bias"])
def test_what_changes_scores_is_refused_by_name(judged: Any, given: str) -> None:
    _, judge = judged("gpt2")
    model = copy.deepcopy(judge)
    transformers_decoder.registered(AttentionInterface)
    model.set_attn_implementation(transformers_decoder.ATTENTION)
    own = model.transformer.h[2].attn.forward
    model.transformer.h[2].attn.forward = lambda *args, **kwargs: own(*args, **kwargs | {given: torch.zeros(1)})
    with pytest.raises(ModelError, match=f"GPT2Attention does not attend to all of a sequence .* [(]{given}[)]"):
        transformers_decoder.observed(model, 3)
