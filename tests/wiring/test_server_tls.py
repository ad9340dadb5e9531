"""A real server whose ports speak TLS: the real client, certificates that are replaced, and files that are wrong."""

import socket
import ssl
from contextlib import contextmanager, suppress

import httpx
import openai
import pytest

from fakes import checkpoints, tls_files
from fakes.api_process import api_process


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def ca():
    return tls_files.authority()


@pytest.fixture(scope="module")
def trusted(ca):
    return ssl.create_default_context(cadata=ca.certificate.decode())


@contextmanager
def serving(model, directory, **options):
    with api_process(model, "--tls-dir", str(directory), wait="listening", **options) as server:
        yield server


def shown(server, trusted):
    with socket.create_connection(server.http) as raw, trusted.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
        return secure.getpeercert(binary_form=True)


def end_with(server, sent):
    """Bytes that are no handshake; the server ends the connection."""
    with socket.create_connection(server.http) as raw:
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        raw.settimeout(60)
        with suppress(ConnectionError):
            while raw.recv(4096):
                pass


def ready(server, trusted):
    with httpx.Client(verify=trusted) as client:
        url = f"https://{server.ops[0]}:{server.ops[1]}/readyz"
        server.until("ready", lambda: server.text() and client.get(url).status_code == 200)


def test_both_ports_speak_tls_and_a_certificate_is_replaced_without_a_lost_stream(model, ca, trusted, tmp_path):
    first, gate = tls_files.issued(ca, tmp_path / "tls"), tmp_path / "gate"
    with serving(model, tmp_path / "tls", faults={"gate": str(gate)}) as server:
        ready(server, trusted)
        assert shown(server, trusted) == tls_files.binary(first)
        http = openai.DefaultHttpxClient(verify=trusted)
        with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, http_client=http) as client:
            stream = client.completions.create(model="tiny", prompt="a b c", max_tokens=20, stream=True)
            second = tls_files.issued(ca, tmp_path / "tls")
            server.until("new connections see it", lambda: shown(server, trusted) == tls_files.binary(second))
            (tmp_path / "tls" / "..data" / "tls.key").write_bytes(b"spoilt")
            server.until("it is said", lambda: "the previous certificate stays in use" in server.output())
            assert shown(server, trusted) == tls_files.binary(second)
            gate.touch()
            assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        third = tls_files.issued(ca, tmp_path / "tls")
        server.until("mended", lambda: shown(server, trusted) == tls_files.binary(third))
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{server.http[0]}:{server.http[1]}/health")
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100, b""):
            end_with(server, sent)
        ready(server, trusted)


def test_a_server_without_a_usable_certificate_says_so_and_ends(model, ca, tmp_path):
    tls_files.issued(ca, tmp_path / "tls")
    other = tls_files.issued(ca, tmp_path / "other")
    (tmp_path / "tls" / "..data" / "tls.key").write_bytes(other.key)
    for directory in (tmp_path / "tls", tmp_path / "none"):
        with api_process(model, "--tls-dir", str(directory), wait="nothing") as server:
            assert server.wait() == 1
            assert f"--tls-dir has no certificate that fits its key: {directory}" in server.output().replace("\n", " ")
