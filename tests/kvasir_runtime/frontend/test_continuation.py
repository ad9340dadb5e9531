"""What a token is bound to, who can have written it, and what it costs. The streams are test_stream_record's."""

from dataclasses import replace

import pytest

from fakes import tiny_tokenizer
from kvasir_runtime.frontend import continuation, prepare
from kvasir_runtime.frontend.choice_history import ChoiceHistory, ChoiceProgress
from kvasir_runtime.frontend.continuation import TokenSigner, TokenWriter
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.output_processor import output_processors
from kvasir_runtime.frontend.stream_record import StreamRecord
from kvasir_runtime.wire import EngineOutput, packed_ids

TOKENIZER = tiny_tokenizer.tokenizer()
SERVED = ModelProfile(names=("m",), tokenizer=TOKENIZER, max_context=100_000)
SIGNER = TokenSigner(keys=(b"a" * 32, b"b" * 32), model=b"model", tenant=b"tenant")


def job(body=b'{"model": "m", "prompt": "plan", "stream": true, "max_tokens": 90000}', served=SERVED):
    return prepare.from_bytes(body, served, chat=False)


def token(request, ids, signer=SIGNER):
    record = StreamRecord(request, output_processors(request, TOKENIZER), signer.writer(request))
    for one in ids:
        record.add(0, EngineOutput(request_id=request.requests[0].request_id, token_ids=(one,)))
    return f"{record.begin()}.{record.gained()}"


def test_seed_and_length_are_those_of_the_stream_and_not_of_the_body():
    first = job()
    smaller = job(served=replace(SERVED, max_context=95_000))
    assert smaller.requests[0].sampling.seed != first.requests[0].sampling.seed
    resumed = SIGNER.resumed(smaller, token(first, range(5, 9)))
    assert resumed.requests[0].sampling == first.requests[0].sampling
    assert resumed.requests[0].generated == (5, 6, 7, 8)
    assert resumed.requests[0].request_id == smaller.requests[0].request_id, "the engine may have the other one's still"


def test_a_token_takes_two_bytes_for_most_ids():
    ids = [(number * 7919) % 150_000 for number in range(50_000)]
    assert len(token(job(), ids)) < 3.8 * len(ids)
    (history,) = SIGNER.resumed(job(), token(job(), ids)).histories
    assert list(history.ids) == ids


def test_an_old_key_is_accepted_and_the_first_signs():
    old = replace(SIGNER, keys=(b"b" * 32,))
    assert SIGNER.resumed(job(), token(job(), [1], old)).histories
    with pytest.raises(Refused, match="another key"):
        old.resumed(job(), token(job(), [1]))


@pytest.mark.parametrize(
    "gained",
    [
        ChoiceProgress(1, b"", ()),
        ChoiceProgress(-2, packed_ids([1]), (1,)),
        ChoiceProgress(0, packed_ids([1, 2]), (1,)),
        ChoiceProgress(0, packed_ids([1]), (2, -1)),
        ChoiceProgress(0, b"abc", (1,)),
    ],
)
def test_what_does_not_fit_together_is_refused_though_it_is_signed(gained):
    writer = SIGNER.writer(job())
    with pytest.raises(Refused, match="damaged"):
        SIGNER.resumed(job(), f"{writer.begin()}.{writer.add([gained])}")


def test_a_version_that_is_not_known_is_named(monkeypatch):
    monkeypatch.setattr(continuation, "VERSION", 2)
    later = token(job(), [1])
    monkeypatch.undo()
    with pytest.raises(Refused, match="version 2; 1 is known"):
        SIGNER.resumed(job(), later)


def test_nothing_of_a_prompt_is_read_before_its_token_is_written():
    class Prompts(tuple):
        __slots__ = ()
        read = 0

        def __getitem__(self, place):
            Prompts.read += 1
            return super().__getitem__(place)

    request = job()
    watched = replace(request, requests=Prompts(request.requests))
    record = StreamRecord(watched, output_processors(request, TOKENIZER), SIGNER.writer(watched))
    record.add(0, EngineOutput(request_id=request.requests[0].request_id, token_ids=(1,)))
    assert Prompts.read == 0
    assert SIGNER.resumed(job(), f"{record.begin()}.{record.gained()}").histories
    assert Prompts.read > 0


def test_a_later_version_is_named_though_its_other_fields_are_different():
    later = TokenWriter(b"a" * 32, lambda: (2, {"answer": "a"})).begin()
    with pytest.raises(Refused, match="version 2; 1 is known"):
        SIGNER.resumed(job(), later)


def test_a_choice_that_has_ended_gains_nothing_more():
    history = ChoiceHistory()
    history.extend(ChoiceProgress(0, packed_ids([1]), (1,), reason="stop"))
    with pytest.raises(ValueError, match="not as many"):
        history.extend(ChoiceProgress(0, packed_ids([1]), (1,)))
    assert history.progress(0, (), 0) is not None
    assert history.progress(0, (), 0) is None
