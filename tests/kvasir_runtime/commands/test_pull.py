"""`kvasir pull`: a model is in the cache before it is served, or one line says why not."""

import os
import subprocess
import sys
from pathlib import Path

from fakes import hub
from kvasir_runtime.fetch import shared_cache


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


def test_what_was_fetched_is_recorded_for_processes_that_only_read(tmp_path):
    with hub.serving() as found:
        cache = tmp_path / "hub"
        done = pulled(found, tmp_path, "hf://org/name@v1", "org/name", "--record", str(cache))
    folders = [Path(line) for line in done.stdout.splitlines()]
    assert len(folders) == 2, done.stderr
    assert [shared_cache.awaited(cache, name, None) for name in ("hf://org/name@v1", "org/name")] == folders


def test_a_record_that_cannot_be_written_is_one_line(tmp_path):
    with hub.serving() as found:
        done = pulled(found, tmp_path, "org/name", "--record", str(tmp_path / "elsewhere"))
    assert done.returncode == 1
    assert "elsewhere does not take the record of org/name" in done.stderr
