"""A cache with a limit that processes share: which model gives way, and which stays."""

import os
import subprocess
import sys

import pytest

from kvasir_api import names
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import cache_limit

LIMIT = {names.ENV_MODEL_CACHE_BYTES: "1000"}
HOLD = "import sys; from pathlib import Path; from kvasir_runtime.fetch import cache_limit; "
HOLD += "cache_limit.hold(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def models(tmp_path):
    """Three models of 300 bytes, of which b was used least recently."""
    for name, used in (("a", 30), ("b", 10), ("c", 20)):
        folder = tmp_path / name
        (folder / "blobs").mkdir(parents=True)
        (folder / "blobs" / "model.safetensors").write_bytes(bytes(300))
        (folder / "link").symlink_to("blobs/model.safetensors")
        (folder / ".used").touch()
        os.utime(folder / ".used", (used, used))
    (tmp_path / ".last").mkdir()
    return tmp_path


def there(models):
    return sorted(path.name for path in models.iterdir() if path.name[0] != ".")


@pytest.mark.parametrize(
    ("rest", "stay"),
    [(100, ["a", "b", "c", "new"]), (101, ["a", "c", "new"]), (500, ["a", "new"]), (1000, ["new"])],
)
def test_the_least_recently_used_give_way(models, rest, stay):
    cache_limit.hold(models / "new", LIMIT)
    cache_limit.make_room(models / "new", rest, LIMIT)
    assert there(models) == stay
    assert (models / ".last").is_dir()


def test_a_model_that_is_used_again_is_the_last_to_go(models):
    cache_limit.hold(models / "b", LIMIT)
    assert cache_limit.size(models / "b") == 300
    cache_limit.make_room(models / "b", 500, LIMIT)
    assert there(models) == ["b"]


def test_a_model_that_a_process_uses_stays(models):
    env = {**os.environ, **LIMIT}
    command = [sys.executable, "-c", HOLD, str(models / "b")]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "held\n"
        cache_limit.make_room(models / "new", 101, LIMIT)
        assert there(models) == ["a", "b"]
        with pytest.raises(
            ModelUnavailableError, match=r"holds at most 1 KiB, of which 0 KiB are in use; raise --model"
        ):
            cache_limit.make_room(models / "new", 900, LIMIT)
        assert there(models) == ["b"]
        user.kill()
    cache_limit.make_room(models / "new", 900, LIMIT)
    assert there(models) == []


KILLED = """
import os, sys
from pathlib import Path
from kvasir_runtime.fetch import cache_limit
removed = []

def hook(event, _):
    removed.extend([event] * (event == "os.remove"))
    if len(removed) == 2:
        os._exit(9)

sys.addaudithook(hook)
cache_limit.make_room(Path(sys.argv[1]) / "new", 101)
"""


def test_of_a_model_whose_removal_is_cut_short_nothing_is_found(models):
    command = [sys.executable, "-c", KILLED, str(models)]
    assert subprocess.run(command, env={**os.environ, **LIMIT}, timeout=100, check=False).returncode == 9
    assert there(models) == ["a", "c"]
    assert [*models.glob(".*/**/*")], "some of it lies there"
    cache_limit.make_room(models / "new", 101, LIMIT)
    assert sorted(path.name for path in models.iterdir()) == [".last", "a", "c"]


def test_without_a_limit_nothing_is_touched(models):
    cache_limit.hold(models / "new", {})
    cache_limit.make_room(models / "new", 10**15, {})
    assert there(models) == ["a", "b", "c"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "models").write_text("no directory")
    with pytest.raises(
        ModelUnavailableError, match=r"the cache .*models cannot be written, it has to belong to user \d"
    ):
        cache_limit.hold(tmp_path / "models" / "a", LIMIT)
