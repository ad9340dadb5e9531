"""Each client gets its own outputs once, the whole set of prefixes first, and is reported when it is gone."""

from fakes.clients import FakeClients
from kvasir_api.state import RuntimeState
from kvasir_runtime.engine.client_outboxes import ClientOutboxes
from kvasir_runtime.wire import EngineOutput, StepOutputs

MESSAGE = StepOutputs(outputs=(), state=RuntimeState(), prefixes="changes")


def output(name):
    return EngineOutput(request_id=name)


def started():
    clients, gone = FakeClients(), []
    boxes = ClientOutboxes(clients, gone.append)
    for client in (b"a", b"b"):
        boxes.greet(client, "ready")
    clients.sent.clear()
    return clients, boxes, gone


def test_each_gets_its_own_outputs_once_and_all_prefixes_first():
    clients, boxes, _ = started()
    boxes.add(b"a", output("1"), output("2"))
    boxes.add(b"unknown", output("3"))
    assert boxes
    for _ in range(2):
        boxes.send(MESSAGE, lambda: "whole")
    found = [(client, [one.request_id for one in sent.outputs], sent.prefixes) for client, sent in clients.sent]
    first = [(b"a", ["1", "2"], "whole"), (b"b", [], "whole"), (b"unknown", ["3"], "changes")]
    assert found == [*first, (b"a", [], "changes"), (b"b", [], "changes")]
    assert not boxes


def test_one_that_is_gone_gets_nothing_more():
    clients, boxes, gone = started()
    clients.gone = {b"a"}
    boxes.add(b"a", output("1"))
    boxes.send(MESSAGE, lambda: "whole")
    boxes.send(MESSAGE, lambda: "whole")
    assert gone == [b"a"]
    assert boxes.present == [b"b"]
    assert [client for client, _ in clients.sent] == [b"b", b"b"]
