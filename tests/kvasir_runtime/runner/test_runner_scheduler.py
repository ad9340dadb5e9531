"""The real scheduler drives the real runner: answers stay the oracle's through hits, preemptions and two in flight."""

import random
import shutil
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.host_file import use_host_file
from fakes.oracle import Oracle, oracle_of
from fakes.overlapping import Overlapping
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineRequest, SamplingConfig

SHAPES = {
    "llama": Shape(),
    "deepseek_v2": Shape(family="deepseek_v2", std=0.2),
    "mistral": Shape(family="mistral", extra={"sliding_window": 24}),
    "qwen2": Shape(family="qwen2", tied=True),
    "qwen3": Shape(family="qwen3", extra={"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, SHAPES[name])


def answers(
    runner: ModelRunner,
    requests: list[EngineRequest],
    *,
    budget: int,
    depth: int = 1,
    handed: tuple[int, ...] = (),
    prefix_cache: bool = True,
) -> tuple[dict[str, list[int]], int]:
    """All answers by request id, and how many sequences were preempted on the way. handed: ids that the first request
    is handed after some steps; they are put into its answer where they came."""
    scheduler = scheduler_of(runner, budget=budget, prefix_cache=prefix_cache)
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    ended, flying, joins = set(), deque(), 0
    for request in requests:
        assert scheduler.submit(request, 0.0) is None
    for now in range(200_000):  # many of which wait a moment for copies
        changes = runner.host_changes()
        if changes is not None:
            scheduler.host.changed(changes)
        if now == 6 and handed:
            scheduler.inject(requests[0].request_id, handed)
        while len(flying) < depth and (plan := scheduler.plan(float(now))) is not None:
            joins += len(plan.joins)
            flying.append(runner.launch(plan))
        if not flying:
            break
        for event in scheduler.commit(runner.collect(flying.popleft()), float(now)):
            found[event.request_id] += handed[: event.injected] + event.token_ids
            if event.finish_reason is not None:
                assert event.finish_reason in {"length", "stop"}
                ended.add(event.request_id)
    assert ended == set(found)
    return found, joins - len(requests)


def requests_of(prompts: list[tuple[int, ...]], num_tokens: int) -> list[EngineRequest]:
    sampling = SamplingConfig(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return [EngineRequest(request_id=str(i), prompt=prompt, sampling=sampling) for i, prompt in enumerate(prompts)]


STATE, LATENT = LayerAttention("state"), LayerAttention("latent")
MIXES = st.lists(
    st.one_of(
        st.just(FULL),
        st.just(STATE),
        st.builds(LayerAttention, st.just("window"), st.integers(1, 40)),
        st.builds(LayerAttention, st.just("chunked"), st.integers(1, 40)),
    ),
    min_size=1,
    max_size=5,
).map(tuple) | st.integers(1, 3).map(lambda count: (LATENT,) * count)
WAYS = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([24, 60, 200]),
        "budget": st.sampled_from([7, 48, 400]),
        "depth": st.integers(1, 2),
        "prefix_cache": st.booleans(),
        "in_cpp": st.booleans(),
        "device_rows": st.booleans(),
        "host_tier": st.booleans(),
    }
)


@settings(max_examples=20, deadline=None)
@given(mix=MIXES, ways=st.lists(WAYS, min_size=2, max_size=3), seed=st.integers(0, 99))
def test_any_mix_of_layers_gives_the_oracles_answers_however_they_are_served(
    root: Path, mix: tuple[LayerAttention, ...], ways: list[dict[str, Any]], seed: int
) -> None:
    """Whole and in chunks, alone and in a batch, behind cached prefixes, preempted, with one plan in flight and two,
    with blocks that a replica before has left on the host.
    """
    types = ["linear_attention" if attention == STATE else "full_attention" for attention in mix]
    folder = root / " ".join(["mix of", *(["latent"] * len(mix) if LATENT in mix else types)])
    if not folder.exists():
        family = "qwen3_next" if STATE in mix else "deepseek_v2" if LATENT in mix else "qwen3"
        extra = {"layer_types": types} if STATE in mix else {}
        checkpoints.write(folder, Shape(family=family, num_layers=len(mix), std=0.2, extra=extra))
    oracle, chooser = Oracle(folder, () if LATENT in mix else mix), random.Random(seed)
    common = tuple(chooser.choices(range(3, 320), k=64))
    prompts = [
        common[: chooser.choice((0, 16, 40, 64))] + tuple(chooser.choices(range(3, 320), k=n)) for n in (1, 9, 30, 5, 2)
    ]
    host, replicas = root / "kv", [(number, way) for way in ways for number in range(1 + way["host_tier"])]
    for number, way in replicas:
        runner = runner_of(
            folder,
            num_blocks=way["num_blocks"],
            max_sequences=4,
            attentions=mix,
            ops=cpu_ops() if way["in_cpp"] else CPU,
            device_stream=Overlapping() if way["device_rows"] else None,
        )
        if way["host_tier"]:
            if not number:
                shutil.rmtree(host, ignore_errors=True)
            use_host_file(runner, host, 8 << 20)
        found, _ = answers(
            runner, requests_of(prompts, 20), budget=way["budget"], depth=way["depth"], prefix_cache=way["prefix_cache"]
        )
        for index, prompt in enumerate(prompts):
            assert len(found[str(index)]) == 20
            assert oracle.wrong_tokens(prompt, found[str(index)]) == []


def test_a_window_holds_many_more_sequences_in_the_same_cache(root: Path) -> None:
    """24 blocks of 8 tokens are less than one of these sequences is long, and hold three of them at a time."""
    mix = (LayerAttention("window", 16),) * 2
    folder = checkpoints.write(root / "windows", Shape(family="qwen3"))
    runner = runner_of(folder, num_blocks=24, max_sequences=4, attentions=mix)
    prompts = [tuple(random.Random(seed).choices(range(3, 320), k=250)) for seed in range(3)]
    found, num_preempted = answers(runner, requests_of(prompts, 30), budget=24)
    assert num_preempted == 0
    for index, prompt in enumerate(prompts):
        assert Oracle(folder, mix).wrong_tokens(prompt, found[str(index)]) == []


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("depth", [1, 2])
def test_answers_are_the_oracles_when_blocks_are_short(root: Path, name: str, depth: int) -> None:
    folder, chooser = folder_of(root, name), random.Random(3)
    common = tuple(chooser.choices(range(3, 320), k=48))
    prompts = [
        common[: chooser.choice((0, 16, 40, 48))] + tuple(chooser.choices(range(3, 320), k=n)) for n in range(1, 25)
    ]
    # 16 sequences of about 80 tokens want 160 blocks of 8, but for those with a window 64.
    runner = runner_of(folder, num_blocks=48 if name == "mistral" else 90, max_sequences=16)
    found, num_preempted = answers(runner, requests_of(prompts, 40), budget=48, depth=depth)
    assert num_preempted > 0
    for index, prompt in enumerate(prompts):
        assert oracle_of(folder).wrong_tokens(prompt, found[str(index)]) == []
        assert len(found[str(index)]) == 40


def test_warm_prompt_gives_the_cold_answer(root: Path) -> None:
    folder = folder_of(root, "qwen3")
    prompt = tuple(random.Random(8).choices(range(3, 320), k=100))
    found, _ = answers(runner_of(folder), requests_of([prompt, (*prompt[:64], 5), prompt], 20), budget=64)
    assert found["0"] == found["2"]
    assert oracle_of(folder).wrong_tokens((*prompt[:64], 5), found["1"]) == []


def test_sampled_answers_do_not_depend_on_batch_budget_or_preemption(root: Path) -> None:
    folder = folder_of(root, "llama")
    prompts = [tuple(random.Random(i).choices(range(3, 320), k=5 + i)) for i in range(12)]
    requests = [
        EngineRequest(
            request_id=str(i),
            prompt=prompt,
            sampling=SamplingConfig(temperature=1.0, top_k=40, top_p=0.9, seed=i, max_tokens=30, ignore_eos=True),
        )
        for i, prompt in enumerate(prompts)
    ]
    together, _ = answers(runner_of(folder), requests, budget=256)
    tight, num_preempted = answers(runner_of(folder, num_blocks=20, max_sequences=6), requests, budget=16)
    assert num_preempted > 0
    assert tight == together
    for request in requests[:3]:
        alone, _ = answers(runner_of(folder), [request], budget=7)
        assert alone[request.request_id] == together[request.request_id]


@pytest.mark.parametrize("depth", [1, 2])
def test_an_answer_goes_on_behind_what_was_handed_in(root: Path, depth: int) -> None:
    folder = folder_of(root, "qwen3")
    prompt, handed = tuple(range(3, 40)), tuple(range(100, 120))
    requests = requests_of([prompt, prompt[:9]], 24)
    found, _ = answers(runner_of(folder), requests, budget=64, depth=depth, handed=handed)
    said = found["0"]
    assert len(said) == 24 + len(handed)
    mark = next(place for place in range(len(said)) if tuple(said[place : place + len(handed)]) == handed)
    assert 3 <= mark <= 8
    assert oracle_of(folder).wrong_tokens(prompt, said[:mark]) == []
    assert oracle_of(folder).wrong_tokens((*prompt, *said[:mark], *handed), said[mark + len(handed) :]) == []
