"""Clients that others wrote, from their packages, against a real `kvasir serve`: `make test-clients`.

Each file of tests/outside/python and tests/outside/node is run by its own interpreter and must pass as a whole.
Not collected by `make test`, since the packages are fetched.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.scripted import TOOL_TEMPLATE, Scripted, scripted
from outside import environment

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
OPTIONS = ("--kv-cache-tokens", "65536", "--device", "cpu")
PYTHON = environment.HERE / "python"
NODE = environment.HERE / "node"
SUITE_S = 300
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""With tools in hermes' format and without thoughts, which random weights would never end."""


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """The variables that tests of clients read; see python/conftest.py."""
    with serving(tmp_path_factory.mktemp("clients")) as variables:
        yield variables


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """Two servers, and where they are."""
    model = checkpoints.write(folder / "tiny", checkpoints.Shape(max_position_embeddings=32768))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    with (
        api_process(model, *OPTIONS, command=REAL) as real,
        scripted(folder / "scripted", chat_template=TOOL_TEMPLATE) as told,
    ):
        yield _variables(real.base_url, told, model)


def _variables(url: str, told: Scripted, model: Path) -> dict[str, str]:
    return {
        "KVASIR_URL": url.removesuffix("/v1"),
        "KVASIR_SCRIPTED_URL": told.server.base_url.removesuffix("/v1"),
        "KVASIR_SCRIPT": os.fspath(told.script),
        "KVASIR_MODEL": os.fspath(model),
        "HF_HUB_OFFLINE": "1",
    }


def passes(command: list[str | Path], env: dict[str, str], cwd: Path, timeout_s: float = SUITE_S) -> None:
    """Run a suite, and fail with its output where it fails or has no test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, env=kept | env, cwd=cwd, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}"[-20_000:], pytrace=False)


@pytest.mark.timeout(environment.INSTALL_S + SUITE_S)
@pytest.mark.parametrize("suite", sorted(path.name for path in PYTHON.glob("*.py") if path.name != "conftest.py"))
def test_python_client(suite, servers):
    python = environment.venv_python()
    options = ["-c", PYTHON / "pytest.ini", "--confcutdir", PYTHON]
    passes([python, "-m", "pytest", *options, PYTHON / suite], servers, cwd=PYTHON)


@pytest.mark.timeout(environment.INSTALL_S + SUITE_S)
@pytest.mark.parametrize("suite", sorted(path.name for path in NODE.glob("*.test.mjs")))
def test_node_client(suite, servers):
    folder = environment.node_folder()
    variables = servers | {"KVASIR_PYTHON": os.fspath(environment.venv_python())}
    passes(["node", "--test", folder / suite], variables, cwd=folder)
