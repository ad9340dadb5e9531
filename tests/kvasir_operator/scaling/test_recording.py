"""Recorded readings: what the operator wrote replays to the same bytes, and readings may be written by hand."""

import json

import pytest

from fakes.operator_bench import KEY, Bench
from kvasir_api.state import KvState, RequestTotals
from kvasir_operator.loop.operator import Operator
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.scaling.recording import InvalidRecordingError, replayed

POD = {"name": "a", "state": {"phase": "ready", "kv": {"capacity_tokens": 1000, "pinned_tokens": 900}}}


class RecordingBench(Bench):
    """An operator that records."""

    def __init__(self, directory):
        self.directory = directory
        super().__init__()

    def started(self) -> Operator:
        settings = OperatorSettings(model_dirs=("/srv",), readings_dir=str(self.directory))
        return Operator(self.cluster, self.reader, settings=settings, instance="test", clock=self.clock)


@pytest.mark.parametrize("restart_at", [None, 3, 18, 25, 44])
async def test_what_the_operator_decided_is_decided_again_byte_by_byte(tmp_path, restart_at):
    bench = RecordingBench(tmp_path)
    down = {"windowSeconds": 30}
    await bench.put_service(replicas=1)
    await bench.turn()
    await bench.put_pods(1)
    await bench.turn()
    await bench.put_service(autoscaling={"maxReplicas": 5, "scaleDown": down})
    pinned = [300, 950, 950, 990, 200, 0, 0, 0] * 6
    for tick, tokens in enumerate(pinned):
        totals = RequestTotals(arrivals=3 * tick, completions=2 * tick, generation_tokens=90 * tick)
        kv = KvState(capacity_tokens=1000, pinned_tokens=tokens, free_tokens=1000 - tokens)
        if tick == 20:
            await bench.put_pods(2)
            bench.reader.says.clear()
        bench.say(0, kv=kv, running=3, totals=totals)
        if tick == 30:
            mode = {"mode": "Advisory", "maxReplicas": 5, "scaleDown": down}
            await bench.put_service(autoscaling=mode, replicas=2)
        if tick == 40:
            await bench.put_service(autoscaling={"maxReplicas": 5, "scaleDown": down}, replicas=2)
        if tick == restart_at:
            bench.operator = bench.started()
        await bench.turn()
    name = ".".join(KEY)
    readings, decisions = (tmp_path / f"{name}.{kind}.jsonl" for kind in ("readings", "decisions"))
    again = b"".join(replayed(readings.read_bytes().splitlines(keepends=True)))
    assert again == decisions.read_bytes()
    counts = [json.loads(line)["replicas"] for line in again.splitlines()]
    assert len(set(counts)) > 1
    # A new operator decides nothing before it has read the pods that are ready, for little more than six seconds.
    assert len(pinned) - (0 if restart_at is None else 4) <= len(counts) <= len(pinned)


def test_readings_may_be_written_by_hand():
    lines = [json.dumps({"at": at, "spec": {"maxReplicas": 3}, "pods": [POD]}).encode() for at in (0, 2, 4)]
    decided = [json.loads(line) for line in replayed(lines)]
    assert [d["replicas"] for d in decided] == [2, 2, 2]
    assert decided[0]["reason"] == "KV cache needs 1.2 replicas at 85 %"
    assert (decided[0]["before"], decided[1]["before"]) == (1, 2)


def test_services_are_told_apart():
    lines = [
        json.dumps({"at": 0, "service": name, "pods": [POD], "byHand": count}).encode()
        for name, count in (("a", 1), ("b", 4))
    ]
    assert [json.loads(line)["before"] for line in replayed(lines)] == [1, 4]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: "),
        (b'{"pods": []}', "line 2: Object missing required field `at`"),
        (b'{"at": 1, "spec": {"maxReplicas": "many"}}', "line 2: 1 validation error"),
        (b'{"at": 0}', "line 2: at 0 is not after 0"),
        (b'{"at": 1, "byhand": 3}', "line 2: Object contains unknown field `byhand`"),
        (b'{"at": 1, "byHand": -3}', "line 2: Expected `int` >= 0"),
        (b'{"at": 1, "wanted": -1}', "line 2: Expected `int` >= 0"),
        (b'{"at": 1, "wanted": 1' + b"0" * 400 + b"}", "line 2: Expected `int` <= "),
        (b'{"at": 1, "wall": 1e18}', "line 2: Expected `float` <= "),
        (b'{"at": 1, "wall": -62135596800}', "line 2: Expected `float` >= 0"),
        (b'{"at": 1, "spec": {"maxReplica": 9}}', "line 2: spec.maxReplica is no field of spec.autoscaling"),
        (b'{"at": 1, "spec": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "line 2: its values are nested too deep"),
        (b'{"at": 1, "service": "\xff"}', "line 2: 'utf-8' codec can't decode byte 0xff"),
        (b'{"at": 1, "expected": [1e5, 8, 5e-324]}', "line 2: expected: prefill_tokens_per_s is 4.94066e-324"),
        (b'{"at": 1, "expected": [-1, 8, 900]}', "line 2: expected: kv_tokens is -1"),
        (b'{"at": 1, "pods": [{"name": "a"}, {"name": "a"}]}', "line 2: pod a is there 2 times"),
    ],
)
def test_a_line_that_is_none_is_named(line, message):
    with pytest.raises(InvalidRecordingError) as raised:
        list(replayed([json.dumps({"at": 0, "pods": [POD]}).encode(), line]))
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("wall", [0, 1e11])
def test_schedules_are_read_at_each_wall_time(wall):
    schedules = [{"start": "00:00", "durationMinutes": 1440, "timeZone": "Pacific/Kiritimati", "minReplicas": 3}]
    line = {"at": 0, "wall": wall, "spec": {"schedules": schedules}, "pods": [POD]}
    assert [json.loads(line)["replicas"] for line in replayed([json.dumps(line).encode()])] == [3]


def test_a_schedule_of_an_unknown_time_zone_is_replayed_as_the_operator_decided():
    """It reports the spec as invalid, and goes on without the schedule."""
    schedules = [{"start": "00:00", "durationMinutes": 1440, "timeZone": "Mars/Crater", "minReplicas": 3}]
    line = {"at": 0, "spec": {"schedules": schedules}, "pods": [POD]}
    assert [json.loads(line)["replicas"] for line in replayed([json.dumps(line).encode()])] == [2]


def test_a_line_with_which_an_operator_begins_forgets_those_before():
    """A replay went on with the window of the operator before, which the new one did not have."""
    lines = [{"at": at, "spec": {"maxReplicas": 8}, "pods": [POD], "wanted": 4, "since": 0} for at in (0, 400, 800)]
    decided = [json.loads(line)["limitedBy"] for line in replayed(json.dumps(line).encode() for line in lines)]
    assert decided == ["window", "rate", "rate"]
    # Its clock may start again from zero as well.
    lines[2] |= {"at": 1, "since": 1, "begins": True}
    decided = [json.loads(line)["limitedBy"] for line in replayed(json.dumps(line).encode() for line in lines)]
    assert decided == ["window", "rate", "window"]
