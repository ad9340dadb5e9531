"""A process that fetches from a hub: the library reads its environment when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

from fakes.hub import Hub

CODE = """
from kvasir_runtime import errors, hub
try:
    print(hub.fetch(hub.parsed("org/name", "REVISION"), sleep=lambda _: None))
except errors.StartError as error:
    print(f"refused: {error}")
"""
READS_HEADER = """
from kvasir_runtime import errors, hub
name = hub.parsed("hf://org/name/m.gguf")
try:
    print(hub.gguf_config(name, hub.listing(name), timeout_s=TIMEOUT_S))
except errors.StartError as error:
    print(f"refused: {error}")
"""
TOKEN = "hf_of_a_user"


def fetched(found: Hub, home: Path, *, revision: str = "", code: str = CODE, **more: str) -> str:
    """The line that came of it."""
    env = {**os.environ, **found.env(home), "HF_TOKEN": TOKEN, **more}
    done = subprocess.run(
        [sys.executable, "-c", code.replace("REVISION", revision)],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.stdout.splitlines()
    assert TOKEN not in line
    return line
