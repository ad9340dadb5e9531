"""The trace file: what is written is read, also when the process died while writing."""

import os
from pathlib import Path

import pytest

from kvasir_api.hashes import block_root
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import (
    Chunk,
    Grow,
    Join,
    SampledTokens,
    StepFailure,
    StepPlan,
    StepResults,
    TransferResults,
)
from kvasir_runtime.engine import replay
from kvasir_runtime.engine.trace import (
    FailureRecord,
    MessageRecord,
    PlanRecord,
    ResultsRecord,
    StartRecord,
    TraceFile,
    records,
)
from kvasir_runtime.wire import Abort, EngineRequest, SamplingConfig, Submit

LIMITS = Limits(num_blocks=4, block_size=4, max_batch_tokens=8, max_sequences=2, max_model_len=16, eos_token_ids=(0,))
REQUEST = EngineRequest(
    request_id="a", prompt=(1, 2), sampling=SamplingConfig(max_tokens=1, temperature=0.0), salt=b"s"
)
PLAN = StepPlan(
    step=1,
    joins=(
        Join(
            row=0,
            request_id="a",
            tokens=(1, 2),
            prompt_tokens=2,
            computed_tokens=0,
            tables=((0,),),
            sampling=REQUEST.sampling,
            root=block_root(salt=REQUEST.salt),
        ),
    ),
    chunks=(Chunk(row=0, start=0, num_tokens=2, samples=True),),
)
RECORDS = [
    StartRecord(LIMITS),
    MessageRecord(0.5, Submit(REQUEST)),
    PlanRecord(0.5, PLAN),
    ResultsRecord(0.7, StepResults(step=1, sampled=(SampledTokens(0, (5,)),))),
    MessageRecord(0.8, Abort("a")),
    PlanRecord(0.9, None),
    FailureRecord(1.0, StepFailure(message="why", step=1, lacks_memory=True, transfers=(TransferResults(through=1),))),
    PlanRecord(1.1, StepPlan(step=2, grows=(Grow(0, (1,)),))),
]


def write(path, items):
    trace = TraceFile(path)
    for record in items:
        trace.add(record)
    trace.close()


def test_every_record_survives(tmp_path):
    write(tmp_path / "t", RECORDS)
    assert list(records(tmp_path / "t")) == RECORDS


def test_a_torn_end_is_left_out(tmp_path):
    write(tmp_path / "t", RECORDS[:3])
    content = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(content[:-1])
    assert list(records(tmp_path / "t")) == RECORDS[:2]


def test_the_command_says_whether_plans_are_the_same(tmp_path, capsys):
    write(tmp_path / "good", RECORDS[:7])
    write(tmp_path / "bad", RECORDS)
    (tmp_path / "noise").write_bytes(b"\x03\x00\x00\x00abc")
    assert replay.main([str(tmp_path / "good")]) == 0
    assert capsys.readouterr().out == "1 plans came out as recorded\n"
    assert replay.main([str(tmp_path / "bad")]) == 1
    assert "plan 2 differs" in capsys.readouterr().out
    assert replay.main([str(tmp_path / "noise")]) == 2
    assert replay.main([str(tmp_path / "missing")]) == 2
    assert replay.main([]) == 2


@pytest.mark.parametrize("exists", [False, True])
def test_only_its_owner_may_read_a_trace(tmp_path, exists):
    if exists:
        (tmp_path / "t").write_bytes(b"an older trace" * 1000)
        (tmp_path / "t").chmod(0o644)
    write(tmp_path / "t", RECORDS)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600
    assert list(records(tmp_path / "t")) == RECORDS


def test_a_trace_may_go_to_a_device():
    mode = Path(os.devnull).stat().st_mode
    write(Path(os.devnull), RECORDS)
    assert Path(os.devnull).stat().st_mode == mode
