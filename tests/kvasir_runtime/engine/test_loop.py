"""The loop with scripted clients and a fake runner: who is told what, when it waits, how it fails."""

from itertools import count

import msgspec
import pytest

from fakes.clients import CLIENT, FakeClients
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.prefix_digest import split
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.step_times import UNKNOWN_S
from kvasir_runtime.engine.loop import HEARTBEAT_S, Engine, EngineFatalError
from kvasir_runtime.engine.replay import replay
from kvasir_runtime.engine.trace import TraceRecord
from kvasir_runtime.wire import Abort, BeamSearchConfig, Drain, HandBack, Hello, Ready, Shutdown, Submit

ENDLESS = FakeModel(table=tuple(range(1, 61)))
OTHER = b"api-1"


class TraceList(list[TraceRecord]):
    """A trace in memory."""

    def add(self, record):
        self.append(record)


def engine(clients, *, runner=None, depth=1, trace=None, **limits):
    runner = runner or FakeRunner(model=ENDLESS)
    settings = {"num_blocks": 64, "block_size": 4, "max_batch_tokens": 32, "max_sequences": 8, "max_model_len": 256}
    ticks = count()
    return Engine(
        scheduler=Scheduler(Limits(**{**settings, "eos_token_ids": (0,), **limits})),
        runner=runner,
        clients=clients,
        state=RuntimeState(model="m", phase="ready"),
        depth=depth,
        clock=lambda: next(ticks) / 1000,
        trace=trace,
    )


READY = Ready(FakeRunner(model=ENDLESS).facts)


def submit(name, prompt=(1, 2, 3), **sampling):
    return Submit(request(name, prompt, **sampling))


@pytest.mark.parametrize("depth", [1, 2])
def test_work_that_can_wait_is_done_between_requests_and_never_beside_them(depth):
    runner = FakeRunner(model=ENDLESS, idle_work=4)
    clients = FakeClients([[Hello()], [submit("a", max_tokens=3)], [], [], [submit("b", max_tokens=3)]])
    engine(clients, runner=runner, depth=depth).run()
    assert [event.finish_reason for event in clients.events() if event.finish_reason] == ["length", "length"]
    assert runner.idle_work == 0
    busy = [wait for wait in clients.waited if wait > 0]
    assert len(busy) == 1, "it waits for clients only when nothing is left to do"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_is_answered_step_by_step(depth):
    clients = FakeClients([[Hello()], [submit("a", max_tokens=3)]])
    engine(clients, depth=depth).run()
    assert clients.sent[0] == (CLIENT, READY)
    assert [len(event.token_ids) for event in clients.events()] == [1, 1, 1]
    assert [event.finish_reason for event in clients.events()] == [None, None, "length"]
    last = clients.steps()[-1].state
    assert (last.model, last.phase, last.running, last.totals.completions) == ("m", "ready", 0, 1)


def test_a_client_gets_the_whole_set_of_prefixes_and_then_its_changes():
    routes = [bytes([number]) * 8 for number in range(3)]
    clients = FakeClients(
        [
            [Hello()],
            [Submit(request("a", range(1, 9), max_tokens=2, route_hashes=tuple(routes[:2])))],
            [],
            [],
            [(OTHER, Hello())],
            [Submit(request("b", range(11, 19), max_tokens=2, route_hashes=tuple(routes[2:])))],
        ]
    )
    engine(clients).run()
    first, other = (
        [(found.sequence, sorted(split(found.hashes)), found.whole) for step in steps if (found := step.prefixes)]
        for steps in (clients.steps(), clients.steps(OTHER))
    )
    assert first == [(0, [], True), (2, routes[:2], False), (3, routes[2:], False)]
    assert other == [(2, routes[:2], True), (3, routes[2:], False)]


def test_both_depths_and_stages_give_the_same_answers():
    said = []
    for depth, stages in ((1, 1), (2, 1), (2, 2), (4, 4)):
        clients = FakeClients([[submit(str(number), range(number + 1), max_tokens=9) for number in range(12)]])
        engine(clients, runner=FakeRunner(), depth=depth, stages=stages, num_blocks=12).run()
        said.append({name: [] for name in map(str, range(12))})
        for event in clients.events():
            said[-1][event.request_id] += event.token_ids
    assert said == [said[0]] * 4


def test_what_a_step_gave_is_sent_before_a_stage_computes_the_next_one():
    clients = FakeClients([[submit(name, max_tokens=6) for name in "abcd"]])
    heard = []

    class NotingRunner(FakeRunner):
        def launch(self, plan):
            heard.append(sum(len(event.token_ids) for event in clients.events()))
            return super().launch(plan)

    engine(clients, runner=NotingRunner(model=ENDLESS), depth=2, stages=2).run()
    assert heard[:6] == [0, 4, 4, 6, 8, 10], "two steps of two streams each behind the prompts"


def test_it_waits_for_clients_only_when_idle():
    clients = FakeClients([[submit("a", max_tokens=4)]])
    engine(clients).run()
    before, *during, after = clients.waited
    assert during == [0.0] * 4
    assert 0.4 < before <= 0.5
    assert 0.4 < after <= 0.5


@pytest.mark.parametrize("depth", [1, 2])
def test_every_message_announces_the_next_and_a_step_of_unknown_length_before_it_begins(depth):
    clients = FakeClients([[Hello()], [], [submit("a", max_tokens=6)]])
    before_launch = []

    class NotingRunner(FakeRunner):
        def launch(self, plan):
            before_launch.append(clients.steps()[-1].expected_s)
            return super().launch(plan)

    engine(clients, runner=NotingRunner(model=ENDLESS, idle_work=1), depth=depth).run()
    announced = [message.expected_s for message in clients.steps()]
    assert announced[0] == UNKNOWN_S, "work of an idle moment may take long"
    assert before_launch[0] == UNKNOWN_S, "the first step is announced before it begins"
    assert announced[-1] == HEARTBEAT_S


def test_every_client_hears_every_step_and_only_its_own_events():
    clients = FakeClients(
        [[(OTHER, Hello()), Hello()], [submit("a", max_tokens=2), (OTHER, submit("b", max_tokens=2))]]
    )
    engine(clients).run()
    assert {event.request_id for event in clients.events()} == {"a"}
    assert {event.request_id for event in clients.events(OTHER)} == {"b"}
    assert len(clients.steps()) == len(clients.steps(OTHER)) == 5, "the first step is announced"


@pytest.mark.parametrize("leaves", [False, True])
def test_all_answers_of_a_search_go_to_who_asked_and_none_is_remembered(leaves):
    beam = BeamSearchConfig(width=3, answers=("s/0", "s/1", "s/2"))
    made = msgspec.structs.replace(request("s/0", (1, 2, 3), max_tokens=5), beam=beam)
    clients = FakeClients(
        [[(OTHER, Submit(made)), submit("a", max_tokens=9)], [], [(OTHER, Abort("s/0"))] if leaves else []]
    )
    trace = TraceList()
    running = engine(clients, trace=trace, depth=2)
    running.run()
    want = [] if leaves else [(name, "length", 5) for name in beam.answers]
    assert [(event.request_id, event.finish_reason, len(event.token_ids)) for event in clients.events(OTHER)] == want
    assert {event.request_id for event in clients.events()} == {"a"}
    assert running.num_open == 0
    assert not replay(trace).differs


def test_a_refusal_goes_to_who_asked():
    clients = FakeClients([[(OTHER, submit("a", ())), submit("b")]])
    engine(clients).run()
    (refused,) = clients.events(OTHER)
    assert (refused.finish_reason, refused.message) == ("error", "the prompt is empty")


def test_a_second_request_with_the_same_id_does_not_take_over_the_first():
    clients = FakeClients([[submit("a", max_tokens=3)], [(OTHER, submit("a"))]])
    engine(clients).run()
    assert [event.finish_reason for event in clients.events(OTHER)] == ["error"]
    assert clients.events()[-1].finish_reason == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_frees_blocks_with_the_next_step(depth):
    clients = FakeClients([[Hello(), submit("a", max_tokens=99)], [], [], [Abort("a"), Abort("unknown")]])
    engine(clients, depth=depth, prefix_cache=False).run()
    after = clients.steps()[-2:]
    assert after[0].state.kv.pinned_tokens == 0
    assert after[-1].state.totals.aborts == 1
    assert all(not step.outputs for step in after)


def test_draining_is_said_and_work_is_finished():
    clients = FakeClients([[submit("a", max_tokens=3), Drain()]])
    engine(clients).run()
    assert clients.steps()[-1].state.phase == "draining"
    assert clients.events()[-1].finish_reason == "length"


def test_shutdown_does_not_wait_for_work():
    clients = FakeClients([[submit("a", max_tokens=99)], [Shutdown()]])
    engine(clients).run()
    assert len(clients.events()) == 1


def test_a_client_that_is_gone_leaves_no_work_behind():
    clients = FakeClients(
        [[(OTHER, Hello()), (OTHER, submit("a", max_tokens=99)), submit("b", max_tokens=9)]], gone={OTHER}
    )
    engine(clients).run()
    assert clients.steps()[-1].state.totals.aborts == 1
    assert clients.events()[-1].finish_reason == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_step_is_told_and_the_rest_goes_on(depth):
    clients = FakeClients([[submit("a", max_tokens=9)], [], [], [submit("b", max_tokens=9)]])
    runner = FakeRunner(model=ENDLESS, fail_steps=frozenset({2}))
    engine(clients, runner=runner, depth=depth, max_sequences=1).run()
    ends = [(event.request_id, event.finish_reason, event.message) for event in clients.events() if event.finish_reason]
    assert ends == [
        ("a", "error", "the engine failed to compute a step: step 2 was told to fail"),
        ("b", "length", ""),
    ]


def test_a_runner_that_always_fails_ends_the_engine_after_everybody_was_told():
    clients = FakeClients([[submit(name) for name in "abcdef"]])
    runner = FakeRunner(fail_steps=frozenset(range(99)))
    with pytest.raises(EngineFatalError, match="3 steps failed in a row, the last with step 3 was told to fail"):
        engine(clients, runner=runner, max_sequences=1).run()
    assert [event.request_id for event in clients.events()] == ["a", "b", "c"]


@pytest.mark.parametrize("messages", [[], [[submit("a")]]])
def test_a_runner_that_failed_for_good_ends_the_engine_also_while_it_idles(messages):
    with pytest.raises(EngineFatalError, match=r"^rank 1 was killed by SIGKILL$"):
        engine(FakeClients(messages), runner=FakeRunner(failure="rank 1 was killed by SIGKILL")).run()


@pytest.mark.parametrize(("depth", "stages"), [(1, 1), (2, 1), (2, 2)])
def test_a_recorded_trace_replays(depth, stages):
    trace = TraceList()
    clients = FakeClients(
        [
            [submit("a", range(9), max_tokens=30), submit("b", range(9), max_tokens=30), submit("c", ())],
            [],
            [submit("d", range(5))],
            [Abort("b", "stop")],
            [submit("e", range(7), max_tokens=20)],
            *([] for _ in range(20)),
            [submit("f", range(7), max_tokens=20)],
        ]
    )
    runner = FakeRunner(model=ENDLESS, fail_steps=frozenset({12}))
    engine(clients, runner=runner, depth=depth, stages=stages, trace=trace, num_blocks=14).run()
    result = replay(trace)
    assert not result.differs
    assert result.num_plans == len(runner.launched) > 12


def test_a_changed_trace_is_noticed():
    trace = TraceList()
    engine(FakeClients([[submit("a", max_tokens=3)]]), trace=trace).run()
    del trace[1]
    result = replay(trace)
    assert result.differs
    assert result.recorded is not None
    assert result.replayed is None
    with pytest.raises(ValueError, match="does not begin with the limits"):
        replay(trace[1:])


def test_the_loop_does_what_the_scheduler_alone_does():
    requests = [request(str(number), range(1, 2 + number), max_tokens=7) for number in range(9)]
    served = serving(runner=FakeRunner())
    served.submit(*requests)
    served.finish()
    clients = FakeClients([[Submit(made) for made in requests]])
    engine(clients, runner=FakeRunner()).run()
    tokens = {made.request_id: [] for made in requests}
    for event in clients.events():
        tokens[event.request_id] += event.token_ids
    assert tokens == {name: answer.tokens for name, answer in served.answers.items()}


def test_the_first_event_says_how_long_a_request_waited_and_steps_what_they_computed():
    clients = FakeClients([[Hello(), *(Submit(request(f"r{n}", range(1, 9), max_tokens=2)) for n in range(2))]])
    engine(clients, max_sequences=1).run()
    waits = {name: [e.queue_s for e in clients.events() if e.request_id == name] for name in ("r0", "r1")}
    assert 0 < waits["r0"][0] < waits["r1"][0], "one row: the second waits for the first to end"
    assert waits["r0"][1:] == waits["r1"][1:] == [-1.0]
    assert sum(step.computed_tokens for step in clients.steps()) in {2 * 9, 2 * 9 - 4}, "with or without shared blocks"


@pytest.mark.parametrize("depth", [1, 2])
def test_requests_that_wait_are_handed_back_and_those_that_run_go_on(depth):
    beam = BeamSearchConfig(width=2, answers=("d", "d/1"))
    waiting = [submit("c", max_tokens=3), submit("d", max_tokens=3, beam=beam)]
    clients = FakeClients(
        [[Hello(), submit("a", max_tokens=9), submit("b", max_tokens=9)], [], [], [*waiting, HandBack()], [HandBack()]]
    )
    made = engine(clients, depth=depth, max_sequences=2)
    made.run()
    ended = {event.request_id: (event.finish_reason, event.code) for event in clients.events() if event.finish_reason}
    assert ended == {"a": ("length", ""), "b": ("length", "")} | dict.fromkeys(("c", "d", "d/1"), ("abort", "draining"))
    assert sum(event.request_id == "d" for event in clients.events()) == 1
    assert made.num_open == 0
