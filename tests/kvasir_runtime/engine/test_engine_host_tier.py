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
MOST_ROUNDS = 12
"""Of a short run: by then some request was preempted and some block loaded."""
VOCAB = 320
SHAPES = {
    "llama": (Shape(), 48),
    "gemma-window": (Shape(family="gemma3_text", std=0.2), 30),
}
"""With the blocks of a cache that is too small."""
if SOAK_S:  # a short run of these is in runner/test_runner_host_tier.py
    SHAPES["deepseek-latent"] = (Shape(family="deepseek_v2", std=0.2), 48)
    SHAPES["qwen3-next-state"] = (Shape(family="qwen3_next", num_layers=4, std=0.2), 30)


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


def pressed(states):
    """Preemptions, and tokens loaded from the host, of engines whose last states these are."""
    return sum(state.totals.preemptions for state in states), sum(state.kv_host.loaded_tokens for state in states)


def is_enough(states, name):
    """Whether both happened. Where layers see a window or have a state, admission leaves few to be preempted."""
    num_preempted, num_loaded = pressed(states)
    return num_loaded > 10 * BLOCK_SIZE and (num_preempted > 0 or name != "llama")


@pytest.mark.timeout(SOAK_S + 300)
@pytest.mark.parametrize("name", SHAPES)
def test_every_answer_of_a_disturbed_engine_is_that_of_one_left_alone(tmp_path, name):
    torch.set_num_threads(1)
    chance, history = random.Random(SEED), []
    shape, num_blocks = SHAPES[name]
    model, folder = checkpoints.write(tmp_path / "model", shape), tmp_path / "kv"
    alone = SoakEngine(model, folder, num_blocks=400, max_sequences=1, prefix_cache=False)
    block_bytes = alone.runner.blocks[:, 0].numel()

    def fresh(number):
        return SoakEngine(
            model,
            folder,
            num_blocks=num_blocks,
            max_sequences=10,
            host_bytes=(block_bytes + 5000) * 150,
            depth=1 + number % 2,
        )

    engines, gone = [fresh(0), fresh(1)], []
    rounds = num_whole = 0
    until = time.monotonic() + SOAK_S / len(SHAPES)
    states = []
    while rounds < LEAST_ROUNDS or time.monotonic() < until or (rounds < MOST_ROUNDS and not is_enough(states, name)):
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
        states = [*gone, *(engine.state for engine in engines)]
        if rounds == 2 or rounds % 20 == 0:  # a restarted replica: the other one goes on
            number = rounds // 20 % 2
            gone.append(engines[number].state)
            engines[number] = fresh(number)
    num_preempted, num_loaded = pressed(states)
    sys.stdout.write(f"{name}: {num_whole} answers equal, {num_preempted} preemptions, {num_loaded} tokens loaded\n")
    assert num_whole > rounds
    assert is_enough(states, name)
