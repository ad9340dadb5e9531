"""The loop with a second tier: copies end while it idles, a trace of them replays, and failures are still counted."""

import pytest

from fakes.clients import FakeClients
from fakes.host import FakeHost
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.loop import Engine, EngineFatalError
from kvasir_runtime.engine.replay import replay
from kvasir_runtime.engine.trace import HostRecord, MessageRecord
from kvasir_runtime.wire import Forget, Hello, PeerKeys, Submit

ENDLESS = FakeModel(table=tuple(range(1, 61)))
LONG, OTHER = range(1, 41), range(100, 150)


class TraceList(list):
    """A trace in memory."""

    def add(self, record):
        self.append(record)


def run(script, *, depth=1, delay=0, trace=None, fail_steps=frozenset()):
    host = FakeHost(num_slots=200, delay=delay)
    runner = FakeRunner(model=ENDLESS, host=host, fail_steps=fail_steps)
    if isinstance(fail_steps, ComputingSteps):
        fail_steps.runner = runner
    limits = Limits(
        num_blocks=16,
        block_size=4,
        max_batch_tokens=32,
        max_sequences=4,
        max_model_len=256,
        eos_token_ids=(0,),
        host_blocks=200,
    )
    clients = FakeClients(script)
    Engine(
        scheduler=Scheduler(limits), runner=runner, clients=clients, state=RuntimeState(), depth=depth, trace=trace
    ).run()
    return clients, runner


def submit(name, prompt):
    return Submit(request(name, prompt))


def pause(count=30):
    return [[] for _ in range(count)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("delay", [0, 4])
def test_an_idle_engine_ends_its_copies_and_a_follow_up_finds_them(depth, delay):
    script = [[Hello(), submit("a", LONG)], *pause(), [submit("b", OTHER)], *pause(), [submit("c", LONG)]]
    clients, runner = run(script, depth=depth, delay=delay)
    cached = {event.request_id: event.cached_tokens for event in clients.events()}
    assert cached == {"a": 0, "b": 0, "c": 36}
    state = clients.steps()[-1].state
    assert state.kv.pinned_tokens == 0
    assert state.kv_host.loaded_tokens > 0
    assert not runner.host.touched


@pytest.mark.parametrize("depth", [1, 2])
def test_a_trace_with_copies_failures_and_forgetting_replays(depth):
    trace = TraceList()
    script = [
        *([submit("a", LONG)], *pause(), [submit("b", OTHER)], *pause(), [submit("c", LONG)]),
        *(*pause(3), [Forget()], [submit("d", LONG), submit("e", OTHER)], *pause(), [submit("f", OTHER)]),
    ]
    _, runner = run(script, depth=depth, delay=2, trace=trace, fail_steps=frozenset({30}))
    assert any(isinstance(record, HostRecord) for record in trace)
    assert any(isinstance(record, MessageRecord) and isinstance(record.message, Forget) for record in trace)
    result = replay(trace)
    assert not result.differs, result
    assert result.num_plans == len(runner.launched)


def test_after_forgetting_everything_is_computed():
    script = [[submit("a", LONG)], *pause(), [Forget()], [submit("b", LONG)], *pause(), [submit("c", LONG)]]
    clients, _ = run(script)
    cached = {event.request_id: event.cached_tokens for event in clients.events()}
    assert cached == {"a": 0, "b": 0, "c": 36}


class ComputingSteps:
    """Steps of plans that compute something, from a number on."""

    def __init__(self, first):
        self.first, self.runner = first, None

    def __contains__(self, step):
        return step >= self.first and any(plan.step == step and plan.chunks for plan in self.runner.launched)


def test_plans_that_only_copy_do_not_hide_that_every_step_fails():
    # Between two steps that fail there are plans that wait for copies.
    script = [[submit("warm", LONG)], *pause()]
    for number in range(6):
        script += [[submit(f"r{number}", LONG)], *pause(12)]
    fails = ComputingSteps(18)
    with pytest.raises(EngineFatalError, match="3 steps failed in a row"):
        run(script, delay=4, fail_steps=fails)
    copying = [plan.step for plan in fails.runner.launched if plan.step > 18 and not plan.chunks]
    assert copying, "there is none between them"


class KeptKeys(list):
    """Peers that take keys."""

    use_keys = list.append


@pytest.mark.parametrize("peers", [KeptKeys(), None])
def test_keys_reach_the_peers_of_the_runner_and_no_trace(peers):
    trace, runner = TraceList(), FakeRunner(model=ENDLESS, peers=peers)
    limits = Limits(num_blocks=16, block_size=4, max_batch_tokens=32, max_sequences=4, max_model_len=64)
    clients = FakeClients([[Hello(), PeerKeys((b"a key of the service",))]])
    Engine(scheduler=Scheduler(limits), runner=runner, clients=clients, state=RuntimeState(), trace=trace).run()
    assert peers in ([(b"a key of the service",)], None)
    assert "a key" not in repr(list(trace))
