"""What keeps an engine from starting is found before the model is loaded."""

import pytest

from fakes.engine_facts import engine_facts
from fakes.runner import FakeRunner
from kvasir_api.options import ServeOptions
from kvasir_runtime.engine.start import StartupClients, limits_of, start_engine
from kvasir_runtime.errors import StartError


class NobodyThere:
    def receive(self, timeout_s):
        return []

    def send(self, client, message):
        return False


def test_trace_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path):
    built = []
    options = ServeOptions(model="m", trace=str(tmp_path / "absent" / "trace"))
    socket = NobodyThere()
    with pytest.raises(StartError, match=r"--trace .*: cannot be written: No such file or directory"):
        start_engine(options, lambda *given: built.append(given), socket, StartupClients(socket))
    assert not built


@pytest.mark.parametrize(("asked", "want"), [("off", "off"), ("auto", "off")])
def test_drafts_that_nothing_verifies_are_left_out(asked, want):
    facts = engine_facts(no_drafts="the device is another one")
    assert limits_of(ServeOptions(model="m", speculation=asked), facts).speculation == want


@pytest.mark.parametrize("stages", [1, 4])
def test_as_many_steps_may_be_in_flight_as_there_are_stages(stages):
    assert limits_of(ServeOptions(model="m", pipeline_parallel_size=stages), engine_facts()).stages == stages


def test_a_drafter_that_is_named_and_cannot_be_is_refused():
    facts = engine_facts(no_drafts="the device is another one")
    with pytest.raises(StartError, match="--speculation suffix: the device is another one; choose auto or off"):
        limits_of(ServeOptions(model="m", speculation="suffix"), facts)
    assert limits_of(ServeOptions(model="m", speculation="suffix"), engine_facts()).speculation == "suffix"


@pytest.mark.parametrize(
    ("drafter", "kept", "warned"),
    [("off", 7, 1), ("ngram", 7, 1), ("mtp", 7, 1), ("/models/small", 7, 1), ("suffix", 7, 0), ("off", 0, 0)],
)
def test_recent_answers_that_nothing_would_draft_from_are_named_and_end_no_start(caplog, drafter, kept, warned):
    """A stored service may have the field without the other, and its pods are to start after an upgrade."""
    socket = NobodyThere()
    options = ServeOptions(model="m", speculation=drafter, suffix_decoding_max_cached_requests=kept)
    engine = start_engine(options, lambda *given: FakeRunner(), socket, StartupClients(socket))
    assert engine.num_open == 0
    assert ["requests 7 has no effect" in line for line in caplog.messages] == [True] * warned


def test_as_many_recent_answers_are_kept_as_the_option_says():
    options = ServeOptions(model="m", speculation="auto", suffix_decoding_max_cached_requests=7)
    assert limits_of(options, engine_facts()).max_cached_answers == 7
