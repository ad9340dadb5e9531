"""Real engines with too little memory share a second tier, and every answer is that of an engine left alone.

A short run is part of the tests; `make test-soak` runs ten minutes of it.
"""

import os
import random
import sys
import time

import pytest
import torch

from fakes import checkpoints
from fakes.checkpoints import Shape
from fakes.serving import request
from fakes.soak import BLOCK_SIZE, SoakEngine, damage

SOAK_S = float(os.environ.get("KVASIR_SOAK_S", "0"))
SEED = int(os.environ.get("KVASIR_SEED", "1"))
LEAST_ROUNDS = 2
VOCAB = 320
SHAPES = {
    "llama": Shape(),
    "mistral-window": Shape(family="mistral", extra={"sliding_window": 24}, seed=3),
}


def requests_of(chance, round_, history):
    """Twelve requests: many begin alike, and some go on where an earlier answer ended."""
    shared = random.Random(SEED).choices(range(3, VOCAB), k=120)
    made = []
    for number in range(12):
        kind = chance.random()
        if history and kind < 0.4:
            prompt = [*chance.choice(history)[:220], *chance.choices(range(3, VOCAB), k=chance.randint(1, 20))]
        elif kind < 0.8:
            prompt = [
                *shared[: chance.choice((40, 80, 120))],
                *chance.choices(range(3, VOCAB), k=chance.randint(1, 80)),
            ]
        else:
            prompt = chance.choices(range(3, VOCAB), k=chance.randint(1, 160))
        sampled = {"temperature": 1.0, "top_k": 50, "seed": number} if chance.random() < 0.3 else {}
        made.append(request(f"{round_}.{number}", prompt, max_tokens=chance.randint(8, 90), ignore_eos=True, **sampled))
    return made


def play(engines, requests, chance, folder, *, harm):
    """Serve requests on several engines, disturbed between steps. Requests whose answers are whole."""
    waiting = list(requests)
    aborted = set()
    while waiting or any(engine.scheduler.has_work or engine.flight for engine in engines):
        for engine in engines:
            if waiting and chance.random() < 0.9:
                engine.submit(waiting.pop())
            engine.step()
            event = chance.random()
            open_ = [name for name in engine.answers if name not in engine.ended and name not in aborted]
            if event < 0.01 and open_:
                name = chance.choice(open_)
                aborted.add(name)
                engine.scheduler.abort(name, engine.now)
            elif harm and event < 0.015:
                damage(folder, chance, 20)
            elif harm and event < 0.0155:
                engine.forget()
    return [made for made in requests if made.request_id not in aborted]


@pytest.mark.timeout(SOAK_S + 300)
@pytest.mark.parametrize("name", SHAPES)
def test_every_answer_of_a_disturbed_engine_is_that_of_one_left_alone(tmp_path, name):
    torch.set_num_threads(1)
    chance, history = random.Random(SEED), []
    model, folder = checkpoints.write(tmp_path / "model", SHAPES[name]), tmp_path / "kv"
    alone = SoakEngine(model, folder, num_blocks=400, max_sequences=1, prefix_cache=False)
    block_bytes = alone.runner.blocks[:, 0].numel()

    def fresh(number):
        return SoakEngine(
            model, folder, num_blocks=48, max_sequences=10, host_bytes=(block_bytes + 5000) * 150, depth=1 + number % 2
        )

    engines = [fresh(0), fresh(1)]
    rounds = num_loaded = num_preempted = num_whole = 0
    until = time.monotonic() + SOAK_S / len(SHAPES)
    while rounds < LEAST_ROUNDS or time.monotonic() < until:
        requests = requests_of(chance, rounds, history)
        for made in play(engines, requests, chance, folder, harm=rounds % 2 == 1):
            served = next(engine for engine in engines if made.request_id in engine.answers)
            alone.submit(made)
            while alone.step():
                pass
            assert served.answers[made.request_id] == alone.answers[made.request_id], f"request {made.request_id}"
            history.append([*made.prompt, *served.answers[made.request_id]])
            num_whole += 1
        for engine in (*engines, alone):
            assert engine.state.kv.pinned_tokens == 0
            engine.answers.clear()
            engine.ended.clear()
        history = history[-40:]
        rounds += 1
        if rounds == 2 or rounds % 20 == 0:  # a restarted replica: the other one goes on
            number = rounds // 20 % 2
            num_loaded += engines[number].state.kv_host.loaded_tokens
            num_preempted += engines[number].state.totals.preemptions
            engines[number] = fresh(number)
    num_loaded += sum(engine.state.kv_host.loaded_tokens for engine in engines)
    num_preempted += sum(engine.state.totals.preemptions for engine in engines)
    sys.stdout.write(f"{name}: {num_whole} answers equal, {num_preempted} preemptions, {num_loaded} tokens loaded\n")
    assert num_whole > rounds
    assert num_preempted > 0
    assert num_loaded > 10 * BLOCK_SIZE
