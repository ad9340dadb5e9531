"""Scheduler, loop and real runner together say what transformers says, whatever is shared, cut or preempted."""

import random

import pytest
import torch

from fakes import checkpoints
from fakes.checkpoints import Shape
from fakes.clients import FakeClients
from fakes.oracle import oracle_of
from fakes.overlapping import Overlapping
from fakes.serving import request
from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.loop import Engine
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import Hello, Submit

VOCAB = 320
SHAPES = {
    "llama": Shape(),
    "mistral-window": Shape(family="mistral", extra={"sliding_window": 24}, seed=3),
    "qwen2": Shape(family="qwen2", tied=True, seed=5),
    "qwen3": Shape(family="qwen3", head_dim=24, seed=7),
}


def traffic(seed):
    """Twenty-four prompts of 1 to 240 tokens; many begin alike."""
    chance = random.Random(seed)
    shared = chance.choices(range(3, VOCAB), k=160)
    made = []
    for number in range(24):
        own = chance.choices(range(3, VOCAB), k=chance.randint(1, 80))
        made.append(request(f"r{number}", shared[: chance.choice((0, 40, 96, 160))] + own, max_tokens=24))
    return made


def answers(folder, requests, *, depth, device_stream=None, **options):
    """Tokens by request, and the last state."""
    torch.set_num_threads(1)
    options = ServeOptions(model=str(folder), max_batch_tokens=48, max_sequences=12, max_model_len=320, **options)
    runner = build(options, lambda _: None, device_stream)
    limits = limits_of(options, runner.facts)
    arrivals = [[Submit(made)] for made in requests]
    clients = FakeClients([[Hello(), *arrivals[0], *arrivals[1]], *arrivals[2:]])
    Engine(
        scheduler=Scheduler(limits),
        runner=runner,
        clients=clients,
        state=RuntimeState(),
        depth=depth,
    ).run()
    tokens = {made.request_id: [] for made in requests}
    for event in clients.events():
        tokens[event.request_id] += event.token_ids
    return tokens, clients.steps()[-1].state


def test_a_long_prompt_is_never_more_than_two_steps_ahead_of_the_device(tmp_path):
    """Of ten steps that compute a prompt only the last samples: each of them is waited for."""
    folder, stream = checkpoints.write(tmp_path / "m", SHAPES["llama"]), Overlapping()
    prompts = [request("r0", range(3, 300), max_tokens=2), request("r1", range(30, 240), max_tokens=2)]
    answers(folder, prompts, depth=2, device_stream=stream, kv_cache_tokens=1024)
    assert stream.num_waits[0] == stream.num_events > 12
    assert stream.most_ahead == 2


@pytest.mark.parametrize("name", SHAPES)
def test_answers_equal_the_oracles_under_pressure(tmp_path, name):
    folder, requests = checkpoints.write(tmp_path / name, SHAPES[name]), traffic(seed=len(name))
    roomy, state = answers(folder, requests, depth=1, kv_cache_tokens=16_384)
    assert state.totals.preemptions == 0
    assert state.totals.prefix_hit_tokens > 500
    for made in requests:
        assert oracle_of(folder).wrong_tokens(made.prompt, tuple(roomy[made.request_id])) == []
    for depth, device_stream in ((1, None), (2, None), (2, Overlapping())):
        tight, state = answers(
            folder, requests, depth=depth, device_stream=device_stream, kv_cache_tokens=480, block_size=8
        )
        # With a window in every layer a sequence soon holds all that it ever will.
        assert (state.totals.preemptions > 0) == (name != "mistral-window")
        assert state.kv.pinned_tokens == 0
        assert tight == roomy
    cold, state = answers(folder, requests, depth=1, kv_cache_tokens=16_384, prefix_cache=False)
    assert state.totals.prefix_hit_tokens == 0
    assert cold == roomy
