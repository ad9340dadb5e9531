"""`kvasir pull`: a model is in the cache before it is served, or one line says why not."""

import os
import subprocess
import sys
from pathlib import Path

from fakes import hub


def pulled(found: hub.Hub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, since the hub's library reads its environment when it is imported."""
    command = [sys.executable, "-c", "from kvasir_runtime.commands.pull import pull; pull()", *arguments]
    env = {**os.environ, **found.env(home)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_a_model_is_fetched_once_and_its_folder_is_printed(tmp_path):
    with hub.serving() as found:
        done = pulled(found, tmp_path, "hf://org/name@v1")
        folder = Path(done.stdout.strip())
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == hub.FILES
        assert "downloading 0% (0 KiB of 195 KiB)" in done.stderr
        assert pulled(found, tmp_path, "org/name", "--revision", "v1").stdout == done.stdout
        assert len([path for path in found.of("GET") if path.endswith(hub.WEIGHTS)]) == 1


def test_what_cannot_be_fetched_is_one_line(tmp_path):
    with hub.serving("gated") as found:
        done = pulled(found, tmp_path, "org/name")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: model org/name is gated")
    assert done.stdout == ""
