"""What `docker login` left, in a file or with a helper, which may be broken."""

import base64
import json

import pytest

from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch.docker_login import DockerLogin, docker_login
from kvasir_runtime.fetch.settings import SourceSettings

HOST, PASSWORD = "registry.example:5000", "password-not-to-be-shown"
BASIC = f"Basic {base64.b64encode(f'user:{PASSWORD}'.encode()).decode()}"
GIVES = f"""read host; test "$1 $host" = "get {HOST}" && echo '{{"Username": "user", "Secret": "{PASSWORD}"}}'"""


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """Writes the helper `fake`, a script, and what names it in the user's file."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def write(script, config):
        program = tmp_path / "docker-credential-fake"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        (tmp_path / "config.json").write_text(json.dumps(config))

    return write


def found(settings=None, **limits):
    return docker_login(SourceSettings(settings), HOST, "oci://m", **limits)


@pytest.mark.parametrize(
    "config",
    [
        {"credHelpers": {HOST: "fake", "other.example": "none"}, "credsStore": "none"},
        {"credsStore": "fake", "auths": {HOST: {}}},
    ],
)
def test_a_helper_is_asked_for_its_registry(helper, config):
    helper(GIVES, config)
    assert found() == DockerLogin(basic=BASIC)


@pytest.mark.parametrize(("script", "user"), [("exit 1", "old"), (GIVES, "user")])
def test_a_password_in_the_file_is_used_where_a_helper_has_none(helper, script, user):
    helper(script, {"credsStore": "fake", "auths": {HOST: {"username": user, "password": PASSWORD}}})
    basic = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    assert found() == DockerLogin(basic=f"Basic {basic}")


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("echo 'credentials not found in native keychain'; exit 1", ""),
        ("exit 3", "docker-credential-fake ended with 3"),
        ("exec 0<&-; exit 3", "docker-credential-fake ended with 3"),
        ("sleep 100 & sleep 100", "docker-credential-fake ended with -9"),
        ("while :; do echo 0123456789; done", "docker-credential-fake ended with -9"),
        ("echo '[]'", "docker-credential-fake gives no user and password"),
        (
            """echo '{"Username": "user", "Secret": null}'""",
            "docker-credential-fake gives no user and password",
        ),
        (
            """echo '{"Username": "<token>", "Secret": "x"}'""",
            "docker-credential-fake gives an identity token, which is not used: sign in with a password",
        ),
    ],
)
def test_a_helper_that_gives_nothing_is_named(helper, script, trouble):
    helper(script, {"credsStore": "fake"})
    assert found(helper_s=0.5 if "sleep" in script else 30.0) == DockerLogin(trouble=trouble)


def test_a_helper_that_is_not_there_is_named(helper):
    helper("", {"credsStore": "none"})
    assert found() == DockerLogin(trouble="docker-credential-none cannot be run: No such file or directory")


@pytest.mark.parametrize("name", ["../fake", "a/b", 3])
def test_a_helper_is_no_path(helper, name):
    helper(GIVES, {"credsStore": name})
    with pytest.raises(ModelUnavailableError, match=r"model oci://m: .*config\.json is not of Docker's form"):
        found()


def test_a_pod_runs_no_helper(helper, tmp_path):
    helper(GIVES, {})
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / ".dockerconfigjson").write_text(json.dumps({"credsStore": "fake"}))
    assert found(secret) == DockerLogin()
