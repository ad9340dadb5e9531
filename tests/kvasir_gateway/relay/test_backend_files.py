"""Files of external backends: what is taken, what is left out and why, and where connections may go."""

import contextlib
import ipaddress
import json
import socket

import pytest

from fakes import tls_files
from kvasir_gateway.relay.backend_files import (
    MOST_CONNECTIONS,
    BackendBusyError,
    BackendFiles,
    PublicResolver,
    may_reach,
)

GOOD = {"url": "https://api.example.com/v1", "key": "sk-secret", "namespaces": ["models"]}


@pytest.fixture
async def files(tmp_path):
    found = BackendFiles(tmp_path)
    yield found
    await found.close()


def write(directory, name, content):
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))


async def test_each_file_is_a_backend_and_changes_count(files, tmp_path):
    write(tmp_path, "openai.json", GOOD)
    write(tmp_path, "notes.txt", GOOD)
    write(tmp_path, "..hidden.json", GOOD)
    await files.read()
    first = files.get("openai")
    assert [grant.name for grant in files.grants()] == ["openai"]
    assert (first.base_url, first.key, first.grant.namespaces) == (GOOD["url"], "sk-secret", ("models",))
    await files.read()
    assert files.get("openai") is first, "nothing has changed"
    write(tmp_path, "openai.json", {**GOOD, "key": "sk-next"})
    with first.session("models") as session:
        await files.read()
        assert files.get("openai").key == "sk-next"
        assert not session.closed, "a request has it"
    await files.read()
    assert session.closed
    (tmp_path / "openai.json").unlink()
    await files.read()
    assert (files.get("openai"), files.grants()) == (None, ())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "truncated"),
        ("[]", "object"),
        ({"url": GOOD["url"]}, "namespaces"),
        ({**GOOD, "keys": "sk-secret"}, "keys"),
        ({**GOOD, "url": "http://api.example.com"}, "url"),
        ({**GOOD, "url": "https://user:sk-secret@api.example.com"}, "url"),
        ({**GOOD, "url": "https://:sk-secret@api.example.com"}, "url"),
        ({**GOOD, "url": "https://@api.example.com"}, "url"),
        ({**GOOD, "url": "https://"}, "url"),
        ({**GOOD, "url": "https://127.0.0.1/v1"}, "networks"),
        ({**GOOD, "url": "https://169.254.169.254/v1"}, "networks"),
        ({**GOOD, "url": "https://[::1]/v1"}, "networks"),
        ({**GOOD, "url": "https://api.example.com:x/v1"}, ""),
        ({**GOOD, "networks": ["everywhere"]}, "everywhere"),
        ({**GOOD, "key": "sk-secret\r\nx-evil: 1"}, "key"),
        ({**GOOD, "ca": "no certificate"}, ""),
        ({**GOOD, "ca": "no certificate of K\u00f6ln"}, "ca"),
    ],
)
async def test_a_file_that_cannot_be_used_is_left_out_and_its_key_not_logged(files, tmp_path, caplog, content, why):
    write(tmp_path, "bad.json", content)
    write(tmp_path, "good.json", GOOD)
    await files.read()
    assert [grant.name for grant in files.grants()] == ["good"]
    assert "bad is left out" in caplog.text
    assert why in caplog.text
    assert "sk-secret" not in caplog.text


async def test_a_name_that_no_route_can_name_is_left_out(files, tmp_path):
    write(tmp_path, "Open_AI.json", GOOD)
    await files.read()
    assert files.grants() == ()


async def test_a_directory_that_is_not_there_has_none(tmp_path, caplog):
    files = BackendFiles(tmp_path / "absent")
    await files.read()
    assert files.grants() == ()
    assert "cannot be read" in caplog.text


async def test_a_file_that_cannot_be_read_leaves_the_others(files, tmp_path, caplog):
    (tmp_path / "directory.json").mkdir()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    write(tmp_path, "good.json", GOOD)
    for _ in range(2):
        await files.read()
        assert [grant.name for grant in files.grants()] == ["good"]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition("/")[2] for line in lines] == ["directory.json'", "gone.json'"], "each once"


async def test_an_authority_of_its_own_is_taken(files, tmp_path):
    write(tmp_path, "own.json", {**GOOD, "ca": tls_files.authority().certificate.decode()})
    await files.read()
    assert files.get("own") is not None


@pytest.mark.parametrize(
    ("address", "networks", "may"),
    [
        ("93.184.215.14", [], True),
        ("2606:2800:21f::1", [], True),
        ("10.0.0.1", [], False),
        ("10.0.0.1", ["10.0.0.0/8"], True),
        ("127.0.0.1", [], False),
        ("::1", [], False),
        ("::ffff:127.0.0.1", [], False),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("169.254.169.254", [], False),
        ("fe80::1%eth0", [], False),
        ("0.0.0.0", [], False),
        ("100.64.0.1", [], False),
        ("fd00::1", [], False),
        ("224.0.0.1", [], False),
        ("64:ff9b::a9fe:a9fe", [], False),
        ("64:ff9b::5db8:d70e", [], True),
        ("64:ff9b::a01:203", ["10.0.0.0/8"], True),
        ("64:ff9b::a01:203", ["64:ff9b::/96"], True),
        ("64:ff9b:1::a9fe:a9fe", [], False),
        ("2002:a9fe:a9fe::1", [], False),
        ("2002:5db8:d70e::1", [], True),
        ("::127.0.0.1", [], False),
        ("::ffff:0:127.0.0.1", [], False),
        ("fec0::1", [], False),
        ("fec0::1", ["fec0::/10"], True),
        ("ff0e::1", [], False),
    ],
)
def test_connections_go_to_public_addresses_and_to_networks_that_are_named(address, networks, may):
    assert may_reach(address, tuple(map(ipaddress.ip_network, networks))) is may


@pytest.mark.parametrize(("namespaces", "most"), [(["a"], 256), (["a", "b"], 128), (["*"], 128)])
async def test_a_namespace_leaves_others_half_of_the_connections(files, tmp_path, namespaces, most):
    write(tmp_path, "one.json", {**GOOD, "namespaces": namespaces})
    await files.read()
    backend = files.get("one")
    with contextlib.ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(backend.session("a"))
        with pytest.raises(BackendBusyError):
            stack.enter_context(backend.session("a"))
        for _ in range((MOST_CONNECTIONS - most) // 2):
            stack.enter_context(backend.session("b"))
        with pytest.raises(BackendBusyError):
            stack.enter_context(backend.session("b"))
        assert not backend.idle
    assert backend.idle


async def test_a_name_that_resolves_to_this_machine_is_not_followed():
    with pytest.raises(OSError, match="localhost has no address"):
        await PublicResolver(()).resolve("localhost", 443, socket.AF_INET)
    own = PublicResolver((ipaddress.ip_network("127.0.0.0/8"),))
    assert [one["host"] for one in await own.resolve("localhost", 443, socket.AF_INET)] == ["127.0.0.1"]
    await own.close()
