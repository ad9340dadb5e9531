"""Ports that are open before anything slow happens."""

import socket

import pytest

from fakes import tls_files
from kvasir_runtime.server import ports


def test_a_port_of_every_address_takes_ipv4_too():
    with ports.bind("::", 0, "--port") as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        if listener.family == socket.AF_INET6:
            socket.create_connection(("::1", port)).close()


def test_every_address_is_that_of_ipv4_where_there_is_no_other(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with ports.bind("::", 0, "--port") as listener:
        assert listener.family == socket.AF_INET
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])).close()


def test_a_port_that_is_taken_names_its_option():
    with ports.bind("127.0.0.1", 0, "--port") as first:
        taken = first.getsockname()[1]
        with pytest.raises(ports.PortError, match=rf"cannot listen on 127.0.0.1:{taken}: .*--ops-port"):
            ports.opened("127.0.0.1", 0, taken)


@pytest.fixture(scope="module")
def ca():
    return tls_files.authority()


def test_files_are_loaded_when_they_are_others(ca, tmp_path):
    tls_files.issued(ca, tmp_path)
    found = ports.ServerTls(tmp_path)
    assert not found.refresh()
    tls_files.issued(ca, tmp_path)
    assert found.refresh()
    assert not found.refresh()


@pytest.mark.parametrize("spoilt", ["tls.crt", "tls.key"])
def test_files_that_do_not_fit_change_nothing_until_they_do(ca, tmp_path, spoilt):
    tls_files.issued(ca, tmp_path)
    found = ports.ServerTls(tmp_path)
    context = found.context
    tls_files.issued(ca, tmp_path)
    (tmp_path / "..data" / spoilt).write_bytes(b"x")
    assert not found.refresh()
    (tmp_path / "..data" / spoilt).unlink()
    assert not found.refresh()
    tls_files.issued(ca, tmp_path)
    assert found.refresh()
    assert found.context is context


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
def test_a_start_needs_both_files(ca, tmp_path, missing):
    tls_files.issued(ca, tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ports.PortError, match="no certificate that fits its key"):
        ports.opened("127.0.0.1", 0, 0, str(tmp_path))
