"""A prompt of another replica becomes a request of the engine, if the model takes it, and ends with its connection."""

import time

import pytest

from fakes.engine_facts import engine_facts
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.plan import PeerPrefill
from kvasir_runtime.engine.client_socket import ClientSocket
from kvasir_runtime.engine.peer_prefills import PeerPrefills
from kvasir_runtime.runner.kv_transfer.interface import PeerError
from kvasir_runtime.wire import Abort, EngineOutput, StepOutputs, Submit, packed_ids

FACTS = engine_facts(vocab_size=100, num_blocks=100)
TOKENS = packed_ids(range(40))
WHOSE = PeerPrefill(tenant="acme", weight=2.0, priority=3)
LONG_S = 60.0


@pytest.fixture
def socket(tmp_path):
    made = ClientSocket(f"ipc://{tmp_path}/engine")
    yield made
    made.close()


def next_message(socket):
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        if messages := socket.receive(0.05):
            return messages[0]
    raise AssertionError("no message came")


def test_the_request_is_whose_the_prompt_is_and_ends_with_its_output(socket):
    prefills = PeerPrefills(socket.address, FACTS)
    with prefills(TOKENS, b"salt", WHOSE) as opened:
        client, message = next_message(socket)
        assert isinstance(message, Submit)
        asked = message.request
        assert (asked.packed_prompt, asked.salt, asked.for_peer) == (TOKENS, b"salt", True)
        assert asked.sampling.max_tokens == 1
        assert (asked.tenant, asked.weight, asked.priority) == ("acme", 2.0, 3)
        assert not opened.has_ended(0.0)
        output = EngineOutput(request_id=asked.request_id, finish_reason="length")
        assert socket.send(client, StepOutputs(outputs=(output,), state=RuntimeState()))
        assert opened.has_ended(LONG_S)
    assert socket.receive(0.05) == [], "it has ended, so nothing is aborted"


def test_a_request_whose_caller_is_gone_is_aborted(socket):
    with PeerPrefills(socket.address, FACTS)(TOKENS, b"", WHOSE):
        _, submitted = next_message(socket)
    assert next_message(socket)[1] == Abort(submitted.request.request_id)


@pytest.mark.parametrize(
    ("tokens", "salt"),
    [
        (b"", b""),
        (TOKENS[:-1], b""),
        (packed_ids([FACTS.vocab_size]), b""),
        (packed_ids([1] * FACTS.max_model_len), b""),
        (TOKENS, bytes(257)),
    ],
    ids=["empty", "half an id", "no such id", "too long", "salt"],
)
def test_a_prompt_that_the_model_does_not_take_reaches_no_engine(socket, tokens, salt):
    with pytest.raises(PeerError), PeerPrefills(socket.address, FACTS)(tokens, salt, WHOSE):
        pass
    assert socket.receive(0.0) == []
