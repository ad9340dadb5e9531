"""The loop with a runner that has memory for small steps only: no request notices, unless it cannot run alone."""

import numpy as np
import pytest
import torch

from fakes import checkpoints
from fakes.clients import FakeClients
from fakes.cramped import CrampedRunner
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request
from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.loop import Engine, EngineFatalError
from kvasir_runtime.engine.replay import replay
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.errors import is_out_of_memory
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import Grammar, Hello, Submit

TOO_MUCH = 1 << 52


def on_a_device():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


LACKS = {  # what the libraries themselves raise, and for CUDA what it would
    "python": lambda: bytearray(TOO_MUCH),
    "numpy": lambda: np.empty(TOO_MUCH, dtype=np.uint8),
    "torch": lambda: torch.empty(TOO_MUCH, dtype=torch.uint8),
    "cuda": on_a_device,
}


def answers(requests, runner, *, depth=1, trace=None, limits=None):
    """By request what it got: its tokens, and its last message; and the last state."""
    sizes = {"num_blocks": 64, "block_size": 4, "max_batch_tokens": 32, "max_sequences": 8, "max_model_len": 256}
    clients = FakeClients([[Hello(), *map(Submit, requests)]])
    scheduler = Scheduler(limits or Limits(**sizes, eos_token_ids=(0,)))
    Engine(scheduler=scheduler, runner=runner, clients=clients, state=RuntimeState(), depth=depth, trace=trace).run()
    got = {made.request_id: ([], []) for made in requests}
    for event in clients.events():
        tokens, messages = got[event.request_id]
        tokens += event.token_ids
        messages += [event.message] if event.finish_reason else []
    return got, clients.steps()[-1].state


class TraceList(list):
    """A trace in memory."""

    def add(self, record):
        self.append(record)


def fake_runner():
    return FakeRunner(model=FakeModel(table=tuple(range(1, 61)), loses=False))


TRAFFIC = [
    request(f"r{number}", range(1, 3 + 3 * number), max_tokens=9, grammar=grammar)
    for number, grammar in enumerate([None, Grammar(kind="json_object")] * 3)
]


@pytest.mark.parametrize("what", LACKS)
def test_errors_of_all_libraries_are_recognised(what):
    with pytest.raises((MemoryError, RuntimeError)) as found:
        LACKS[what]()
    assert is_out_of_memory(found.value)
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


@pytest.mark.parametrize("at_launch", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fits", [1, 3, 8])
def test_steps_that_are_too_large_cost_no_request_anything(depth, at_launch, fits):
    want, _ = answers(TRAFFIC, fake_runner(), depth=depth)
    runner = CrampedRunner(fake_runner(), fits, LACKS["torch"], at_launch=at_launch)
    trace = TraceList()
    got, state = answers(TRAFFIC, runner, depth=depth, trace=trace)
    assert got == want
    assert runner.num_failed >= state.totals.memory_failures > 0
    assert state.totals.preemptions == 0
    assert not replay(trace).differs


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_cannot_run_alone_ends_and_the_others_do_not(depth):
    want, _ = answers(TRAFFIC, fake_runner(), depth=depth)
    runner = CrampedRunner(fake_runner(), 32, LACKS["python"], never="r4")
    got, state = answers(TRAFFIC, runner, depth=depth)
    assert got.pop("r4") == ([], ["there is no memory for a token of this request: MemoryError"])
    assert got == {name: answer for name, answer in want.items() if name != "r4"}
    assert state.totals.completions == len(TRAFFIC)


@pytest.mark.parametrize("depth", [1, 2])
def test_memory_that_is_missing_before_a_launch_costs_no_request_anything_and_no_step_its_size(depth):
    want, calm = answers(TRAFFIC, fake_runner(), depth=depth)
    runner = CrampedRunner(fake_runner(), 32, LACKS["python"], fails_before={3, 5})
    trace = TraceList()
    got, state = answers(TRAFFIC, runner, depth=depth, trace=trace)
    assert got == want
    assert (state.totals.memory_failures, state.totals.preemptions) == (2, 0)
    assert state.totals.completions == calm.totals.completions
    assert runner.largest == 32, "the step before is not at fault"
    assert not replay(trace).differs


def test_an_engine_that_never_has_memory_for_a_plan_ends():
    runner = CrampedRunner(fake_runner(), 32, LACKS["python"], fails_before=range(3, 1000))
    with pytest.raises(EngineFatalError, match="3 steps failed in a row, the last with MemoryError"):
        answers(TRAFFIC, runner)


def test_an_engine_that_has_memory_for_no_request_ends():
    runner = CrampedRunner(fake_runner(), 0, LACKS["python"])
    with pytest.raises(EngineFatalError, match="3 steps failed in a row"):
        answers(TRAFFIC, runner)


@pytest.mark.parametrize(("what", "at_launch"), [("torch", True), ("torch", False), ("cuda", True)])
def test_answers_of_a_real_runner_stay_as_they_are(tmp_path, what, at_launch):
    torch.set_num_threads(1)
    folder = checkpoints.write(tmp_path / "m", checkpoints.Shape())
    options = ServeOptions(
        model=str(folder), kv_cache_tokens=1024, max_batch_tokens=48, max_sequences=6, max_model_len=160
    )
    made = [request(f"r{number}", range(3, 12 + 9 * number), max_tokens=12) for number in range(6)]
    wanted = None
    for fits in (48, 5):
        inner = build(options, lambda _: None)
        limits = limits_of(options, inner.facts)
        runner = CrampedRunner(inner, fits, LACKS[what], at_launch=at_launch)
        got, state = answers(made, runner, limits=limits)
        wanted = wanted or got
    assert got == wanted
    assert all(len(tokens) == 12 for tokens, _ in got.values())
    assert state.totals.memory_failures > 2
    assert runner.largest <= 5
