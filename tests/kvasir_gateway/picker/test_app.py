"""The picker's process: what it leaves alone when it cannot start."""

import socket

from click.testing import CliRunner

from kvasir_api import names
from kvasir_gateway.__main__ import gateway
from kvasir_gateway.envoy.bootstrap import PICKER_SOCKET


def test_a_picker_that_finds_its_port_taken_leaves_the_others_socket(tmp_path):
    (tmp_path / PICKER_SOCKET).touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        flags = [f"--config-dir={tmp_path}", "--address=127.0.0.1", f"--state-port={other.getsockname()[1]}"]
        ended = CliRunner().invoke(gateway, flags)
    assert ended.exit_code == names.EXIT_REFUSED
    assert "address already in use" in ended.stderr.lower()
    assert (tmp_path / PICKER_SOCKET).exists()
