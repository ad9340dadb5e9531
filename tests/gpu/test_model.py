"""Whole models on the card say what they say on a CPU: every precision, every way to overlap steps, on and off.

Where there is no card the same runs on the CPU, which shows that the tests work, and that two plans in flight change
nothing.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.inprocess import CLIENT, Seat
from fakes import checkpoints
from fakes.checkpoints import Shape
from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.loop import Engine
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import EngineRequest, SamplingConfig, StepOutputs, Submit, ToEngine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB = 320
SHAPES = {
    "llama": Shape(head_dim=64, std=0.2),
    "window": Shape(family="mistral", head_dim=64, std=0.2, extra={"sliding_window": 24}),
    "qwen2": Shape(family="qwen2", hidden_size=128, num_heads=2, num_kv_heads=1, head_dim=64, tied=True, std=0.2),
    "qwen3": Shape(family="qwen3", head_dim=128, std=0.2),
    "experts": Shape(family="qwen3_moe", head_dim=128, std=0.2, top_k=4),
    "gemma2": Shape(family="gemma2", head_dim=64, tied=True, std=0.2),
    "states": Shape(family="qwen3_next", head_dim=64, std=0.2, extra={"linear_key_head_dim": 64}),
    "latents": Shape(family="deepseek_v2", std=0.2, extra={"kv_lora_rank": 64, "qk_rope_head_dim": 16}),
}
OPTIONS = {"max_model_len": 320, "max_batch_tokens": 48, "max_sequences": 12, "kv_cache_tokens": 4096}


class Answers:
    """Requests a few at a time, and the tokens of each."""

    def __init__(self, requests: list[EngineRequest]) -> None:
        self._waiting = list(reversed(requests))
        self._left = len(requests)
        self.wrong = ""
        self.tokens: dict[str, list[int]] = {made.request_id: [] for made in requests}

    def begin(self) -> list[ToEngine]:
        return [Submit(self._waiting.pop()) for _ in range(min(3, len(self._waiting)))]

    def heard(self, step: StepOutputs, now: float) -> list[ToEngine] | None:
        for event in step.outputs:
            self.tokens[event.request_id] += event.token_ids
            self._left -= event.finish_reason is not None
            if event.finish_reason == "error":
                self.wrong = event.message
        if self.wrong or not self._left:
            return None
        return [Submit(self._waiting.pop())] if self._waiting else []


def requests() -> list[EngineRequest]:
    """Greedy and drawn, short and long, some alike in their beginning, some penalised."""
    chance = random.Random(3)
    shared = chance.choices(range(3, VOCAB), k=100)
    made = []
    for number in range(10):
        own = chance.choices(range(3, VOCAB), k=chance.randint(1, 60))
        sampling = SamplingConfig(
            temperature=(0.0, 0.8)[number % 2],
            top_k=20 if number % 3 == 0 else 0,
            seed=number,
            presence_penalty=0.5 if number % 4 == 3 else 0.0,
            max_tokens=16,
            ignore_eos=True,
        )
        prompt = (*shared[: chance.choice((0, 40, 96))], *own)
        made.append(EngineRequest(request_id=f"r{number}", prompt=prompt, sampling=sampling))
    return made


def built(folder: Path, device: str, **options: Any) -> tuple[ModelRunner, ServeOptions]:
    given = ServeOptions.model_validate({"model": str(folder), "device": device, **OPTIONS, **options})
    return build(given, lambda _: None), given


def answers(folder: Path, device: str, depth: int, **options: Any) -> dict[str, list[int]]:
    runner, given = built(folder, device, **options)
    limits, script = limits_of(given, runner.facts), Answers(requests())
    seat = Seat(script, float("inf"), lambda: 0.0)
    engine = Engine(
        scheduler=Scheduler(limits),
        runner=runner,
        clients=seat,
        state=RuntimeState(),
        depth=depth,
    )
    seat.open()
    engine.run()
    assert not script.wrong
    assert CLIENT in engine.present
    return script.tokens


def settings() -> list[dict[str, Any]]:
    """Every way to run a step that has an option."""
    ways: list[dict[str, Any]] = [{}]
    for name, field in ServeOptions.model_fields.items():
        if "graph" in name:
            ways += [{name: value} for value in _values(field.annotation) if value != field.default]
    return ways


def _values(annotation: Any) -> tuple[Any, ...]:
    return (True, False) if annotation is bool else getattr(annotation, "__args__", ())


@pytest.fixture(scope="module", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp(request.param), SHAPES[request.param])


def test_two_plans_in_flight_and_graphs_change_no_token(folder: Path) -> None:
    wanted = answers(folder, "cpu", depth=1, dtype="float32")
    assert sum(map(len, wanted.values())) == 160
    for way in settings():
        for depth in (1, 2):
            found = answers(folder, DEVICE, depth, dtype="float32", **way)
            assert found == wanted, (way, depth)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_near_the_cpus_float32(folder: Path, dtype: str) -> None:
    if DEVICE == "cpu" and dtype == "float16":
        pytest.skip("computed on a card only")
    tokens = tuple(random.Random(5).choices(range(3, VOCAB), k=200))
    exact = built(folder, "cpu", dtype="float32")[0].logits(tokens)
    found = built(folder, DEVICE, dtype=dtype)[0].logits(tokens).cpu()
    assert_near(found, exact, 0.02)


@pytest.mark.parametrize(("cached", "apart"), [("int8", 0.02), ("fp8", 0.15)])
def test_caches_of_8_bits_are_near_the_cpus_float32(folder: Path, cached: str, apart: float) -> None:
    if DEVICE == "cpu" and cached == "fp8":
        pytest.skip("computed on a card only")
    tokens = tuple(random.Random(6).choices(range(3, VOCAB), k=120))
    exact = built(folder, "cpu", dtype="float32")[0].logits(tokens)
    assert_near(built(folder, DEVICE, dtype="bfloat16", kv_cache_dtype=cached)[0].logits(tokens).cpu(), exact, apart)


def assert_near(found: torch.Tensor, exact: torch.Tensor, apart: float) -> None:
    kl = torch.nn.functional.kl_div(found.log_softmax(-1), exact.log_softmax(-1), log_target=True, reduction="none")
    assert float(kl.sum(-1).mean()) < apart
    assert float((found.argmax(-1) == exact.argmax(-1)).float().mean()) > 0.9 - apart
