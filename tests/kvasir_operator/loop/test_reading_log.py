"""Where the disk takes no more, the autoscaler goes on without a record."""

from kvasir_api.autoscaling import Autoscaling
from kvasir_operator.loop.reading_log import ReadingLog
from kvasir_operator.scaling.decide import ScalingState
from kvasir_operator.scaling.tick import TickInputs, tick
from kvasir_operator.scaling.window import EMPTY


def written(log, name):
    spec, state, inputs = Autoscaling(), ScalingState(wanted=1, since=0.0), TickInputs(at=10.0)
    result = tick(spec, EMPTY, state, inputs, by_hand=1)
    log.write(("default", name), "uid", spec, before=state, inputs=inputs, by_hand=1, begins=True, result=result)


def test_a_tick_is_a_line_in_each_file_of_its_service(tmp_path):
    log = ReadingLog(str(tmp_path))
    written(log, "tiny")
    written(log, "tiny")
    lines = {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    assert lines == {"default.tiny.readings.jsonl": 2, "default.tiny.decisions.jsonl": 2}


def test_a_disk_that_takes_no_more_ends_the_record_with_one_error(tmp_path, caplog):
    log = ReadingLog(str(tmp_path))
    (tmp_path / "default.tiny.readings.jsonl").symlink_to("/dev/full")
    written(log, "tiny")
    written(log, "other")
    assert [r.message for r in caplog.records] == [
        "readings are recorded no further: [Errno 28] No space left on device"
    ]
    assert not (tmp_path / "default.other.readings.jsonl").exists()
