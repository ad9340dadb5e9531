"""A download that goes wrong: what is tried again, what is said, and that a token goes nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import hub

CODE = """
from kvasir_runtime import errors, source
try:
    print(source.resolve("org/name", "REVISION"))
except errors.ModelError as error:
    print(f"refused: {error}")
"""
TOKEN = "hf_of_a_user"


def fetched(found: hub.Hub, home: Path, *, revision: str = "") -> str:
    """The line that came of it, in a process of its own: the library reads its environment when it is imported."""
    env = {**os.environ, **found.env(home), "HF_TOKEN": TOKEN}
    done = subprocess.run(
        [sys.executable, "-c", CODE.replace("REVISION", revision)],
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


def test_a_download_that_is_cut_is_begun_again_and_whole(tmp_path):
    with hub.serving("cut once") as found:
        folder = Path(fetched(found, tmp_path))
        assert {name: (folder / name).read_bytes() for name in hub.FILES} == hub.FILES
        assert len([path for path in found.of("GET") if path.endswith("model.safetensors")]) == 2


def test_only_what_is_used_is_fetched_of_the_revision(tmp_path):
    unused = ("pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "model.pth", "README.md")
    used = {"tokenizer.json": b"{}", "tekken.json": b"{}", "tokenizer.model": b"m", "chat_template.jinja": b"t"}
    with hub.serving() as found:
        found.files = hub.FILES | used | dict.fromkeys(unused, b"unused")
        folder = Path(fetched(found, tmp_path, revision="v1.0"))
        assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {*hub.FILES, *used}
        assert any("/revision/v1.0" in path for path in found.of("GET"))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("cut always", "could not be fetched from the hub: peer closed connection"),
        ("too long", "could not be fetched from the hub: Consistency check failed: file should be of size 200936"),
        ("circle", "could not be fetched from the hub: Exceeded 20 redirects"),
        ("refused", "could not be fetched from the hub: 403 Forbidden"),
        ("gated", "is gated: accept its terms on the hub and set HF_TOKEN"),
        ("absent", "is neither a directory nor a public repository on the hub"),
        ("busy", "could not be fetched from the hub: Server error '503 Service Unavailable'"),
    ],
)
def test_a_download_that_fails_is_one_line_and_tried_only_so_often(tmp_path, fault, says):
    with hub.serving(fault) as found:
        line = fetched(found, tmp_path)
        assert line.startswith(f"refused: model org/name {says}")
        assert len(found.asked) <= 40
    assert not list(tmp_path.glob("hub/models--org--name/snapshots/*/model.safetensors")), (
        "half a file was taken for one"
    )


def test_a_token_is_not_sent_to_where_the_hub_leads(tmp_path):
    with hub.serving() as store, hub.serving("elsewhere") as found:
        found.elsewhere = store.url
        folder = Path(fetched(found, tmp_path))
        assert (folder / "model.safetensors").read_bytes() == hub.FILES["model.safetensors"]
        assert [key for _, _, key in found.asked] == [f"Bearer {TOKEN}"] * len(found.asked)
        assert store.asked
        assert {key for _, _, key in store.asked} == {""}
