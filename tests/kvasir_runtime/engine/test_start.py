"""What keeps an engine from starting is found before the model is loaded."""

import pytest

from kvasir_api.options import ServeOptions
from kvasir_runtime.engine.start import StartupClients, start_engine
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
