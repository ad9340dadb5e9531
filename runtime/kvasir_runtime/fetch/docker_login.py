"""User and password of a registry as `docker login` keeps them: in the Secret of a pod, else in the user's file of
Docker or with the credential helper that it names, a program of the user's. Called by `registries`.
"""

import base64
import json
import os
import re
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch.settings import SECRET, SourceSettings

_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_S: Final = 30.0
"""A person may have to unlock a keychain meanwhile."""
_MOST_BYTES: Final = 64 * 1024
"""Of a helper's answer."""
_IS_TOKEN: Final = "<token>"
_NOT_FOUND: Final = b"credentials not found"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerLogin:
    """basic: the authorization, empty without one. trouble: why a helper gave none, though it may have one."""

    basic: str = ""
    trouble: str = ""


def docker_login(settings: SourceSettings, host: str, model: str, helper_s: float = _HELPER_S) -> DockerLogin:
    """Of a registry. model: for messages. helper_s: for which a helper may run.

    Raises ModelUnavailableError for a file that is not of Docker's form.
    """
    mounted = next(filter(None, map(settings.file, (".dockerconfigjson", "config.json"))), None)
    own = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser() / "config.json"
    path = mounted or (None if settings.of_pod else own)
    try:
        found = json.loads(path.read_bytes()) if path and path.is_file() else {}
        pair, helper = _pair(found, host), "" if settings.of_pod else _helper(found, host)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        where = f"key .dockerconfigjson of {SECRET}" if mounted else str(path)
        raise ModelUnavailableError(f"model {model}: {where} is not of Docker's form") from error
    given = _of_helper(f"docker-credential-{helper}", host, helper_s) if helper else DockerLogin()
    return given if given.basic or not pair else DockerLogin(basic=f"Basic {pair}")


def _pair(config: dict[str, Any], host: str) -> str:
    known = config.get("auths") or {}
    hosts = [host, *(f"https://{host}{path}" for path in ("", "/v1/", "/v2/"))]
    entry: dict[str, str] = next((known[name] for name in hosts if name in known), {})
    pair = entry.get("auth") or ""
    return _encoded(entry["username"], entry.get("password", "")) if not pair and entry.get("username") else pair


def _helper(config: dict[str, Any], host: str) -> str:
    """The end of a helper's name, which is no path; empty without one. Raises ValueError and TypeError."""
    name = (config.get("credHelpers") or {}).get(host) or config.get("credsStore") or ""
    if name and not _HELPER.fullmatch(name):
        raise ValueError(f"{name!r:.100} names no credential helper")
    return str(name)


def _of_helper(program: str, host: str, limit_s: float) -> DockerLogin:
    """What a helper has, by its protocol: the registry on standard input, JSON on standard output."""
    try:
        status, said = _output([program, "get"], host.encode(), limit_s)
    except OSError as error:
        return DockerLogin(trouble=f"{program} cannot be run: {error.strerror}")
    if status:
        return DockerLogin(trouble="" if _NOT_FOUND in said.lower() else f"{program} ended with {status}")
    try:
        found = json.loads(said)
        user, password = found["Username"], found["Secret"]
        if not (isinstance(user, str) and isinstance(password, str)):
            raise ValueError("no texts")
    except (ValueError, LookupError, TypeError, RecursionError):
        return DockerLogin(trouble=f"{program} gives no user and password")
    if user == _IS_TOKEN:
        return DockerLogin(trouble=f"{program} gives an identity token, which is not used: sign in with a password")
    return DockerLogin(basic=f"Basic {_encoded(user, password)}")


def _output(command: list[str], given: bytes, limit_s: float) -> tuple[int, bytes]:
    """Exit status and output of a program, killed with its children where it takes longer or writes more than it may.
    Raises OSError."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, process_group=0) as program:
        assert program.stdin is not None
        assert program.stdout is not None

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)

        limit = threading.Timer(limit_s, kill)
        limit.start()
        try:
            with suppress(BrokenPipeError):
                program.stdin.write(given)
                program.stdin.close()
            said = program.stdout.read(_MOST_BYTES + 1)
            if len(said) > _MOST_BYTES:
                kill()
            return program.wait(), said
        finally:
            limit.cancel()


def _encoded(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()
