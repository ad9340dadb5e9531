"""Ids that a client hands into a running request: through the loop, through a trace file, and replayed."""

from itertools import count

import pytest

from fakes.clients import FakeClients
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.loop import Engine
from kvasir_runtime.engine.replay import replay
from kvasir_runtime.engine.trace import TraceFile, records
from kvasir_runtime.wire import EngineRequest, Hello, Inject, SamplingConfig, Submit

MODEL = FakeModel(table=tuple(range(1, 61)))
LIMITS = Limits(
    num_blocks=64, block_size=4, max_batch_tokens=32, max_sequences=8, max_model_len=256, eos_token_ids=(0,)
)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_client_is_told_where_they_stand_and_the_trace_replays(tmp_path, depth):
    request = EngineRequest(request_id="a", prompt=(1, 2), sampling=SamplingConfig(max_tokens=12))
    script = [[Hello(), Submit(request)], [], [], [], [Inject("a", (90, 91)), Inject("unknown", (7,))]]
    clients, ticks, trace = FakeClients(script), count(), TraceFile(tmp_path / "trace")
    Engine(
        scheduler=Scheduler(LIMITS),
        runner=FakeRunner(model=MODEL),
        clients=clients,
        state=RuntimeState(model="m", phase="ready"),
        depth=depth,
        clock=lambda: next(ticks) / 1000,
        trace=trace,
    ).run()
    trace.close()
    context, answer, marks = [1, 2], [], []
    for event in clients.events():
        if event.injected:
            marks.append((event.injected, len(answer)))
            context += [90, 91]
        for token in event.token_ids:
            assert token == MODEL.next_token(context)
            context.append(token)
            answer.append(token)
    ((injected, mark),) = marks
    assert (injected, len(answer), clients.events()[-1].finish_reason) == (2, 12, "length")
    assert 3 <= mark <= 4 + depth
    result = replay(records(tmp_path / "trace"))
    assert not result.differs
    assert result.num_plans >= 12
