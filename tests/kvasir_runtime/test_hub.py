"""A download that goes wrong: what is tried again, what is said, and that a token goes nowhere else."""

import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import hub
from fakes.hub_process import CODE, READS_HEADER, TOKEN, fetched
from kvasir_api import names
from kvasir_local.demo.hub_server import file_digest
from kvasir_runtime.errors import ModelError
from kvasir_runtime.hub import HubName, parsed

WATCHED = """
from kvasir_runtime import source
source.resolve("hf://org/name", "", lambda done, total: print(done, total, flush=True))
"""
FIRST_TOLD = """
from kvasir_runtime import source
told = []
source.resolve("hf://org/name", "", lambda *bytes: told.append(bytes))
print(*told[0])
"""
MAKES_ROOM = """
import os
from pathlib import Path
from kvasir_runtime import errors, source
from kvasir_runtime.fetch import cache_limit
folder = source.resolve("org/name", "REVISION")
try:
    cache_limit.make_room(Path(os.environ["HF_HOME"]) / "hub" / "models--org--other", 10**6)
except errors.StartError:
    print("there" if folder.exists() else "gone")
"""
WITHOUT_HUB = """
import logging
from kvasir_runtime import hub
told = []
handler = logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
hub.LOG.addHandler(handler)
print(hub.fetch(hub.parsed("org/name", "REVISION"), timeout_s=0.5), *told)
"""
AT_ONCE = "import time; time.sleep = lambda _: None\n"
"""The library waits for 23 seconds in all before it takes a busy hub for one that is not there."""
REACH = "check the network and the variables of proxies, and try again"
PROXY = "a proxy on the way may change it, or the stated one is wrong"


@pytest.mark.parametrize(
    ("model", "revision", "want"),
    [
        ("hf://org/name", "", HubName(repository="org/name")),
        ("hf://org/name@v1.0", "", HubName(repository="org/name", revision="v1.0")),
        ("hf://org/name@refs/pr/1", "", HubName(repository="org/name", revision="refs/pr/1")),
        ("hf://org/name/a-Q4.gguf@v1", "", HubName(repository="org/name", file="a-Q4.gguf", revision="v1")),
        ("org/name", "v1", HubName(repository="org/name", revision="v1")),
        ("./org/name", "", None),
        ("org/name@v1", "", None),
    ],
)
def test_a_name_is_read(model, revision, want):
    assert parsed(model, revision) == want


@pytest.mark.parametrize(
    ("model", "revision", "says"),
    [
        ("hf://org/name@v1", "v2", "model hf://org/name@v1 and --revision v2 both name a revision"),
        ("hf://../name", "", "model hf://../name is not of the form hf://ORG/NAME@REVISION or"),
        ("hf://", "", "model hf:// is not of the form"),
    ],
)
def test_a_broken_name_is_one_line(model, revision, says):
    with pytest.raises(ModelError) as caught:
        parsed(model, revision)
    assert str(caught.value).startswith(says)


def test_a_download_that_is_cut_is_begun_again_and_whole(tmp_path):
    with hub.serving("cut once") as found:
        folder = Path(fetched(found, tmp_path))
        assert {name: (folder / name).read_bytes() for name in hub.FILES} == hub.FILES
        assert len([path for path in found.of("GET") if path.endswith("model.safetensors")]) == 2


def test_a_file_that_a_killed_process_began_is_gone_on_with(tmp_path):
    blobs, content = tmp_path / "hub" / "models--org--name" / "blobs", hub.FILES[hub.WEIGHTS]
    blobs.mkdir(parents=True)
    (blobs / f"{file_digest(hub.WEIGHTS, content)}.incomplete").write_bytes(content[:100_000])
    with hub.serving("damaged always") as found:
        found.damaged = 0  # which is not asked for
        folder = Path(fetched(found, tmp_path))
    assert {name: (folder / name).read_bytes() for name in hub.FILES} == hub.FILES
    assert not list(blobs.glob("*.incomplete"))


def test_only_what_is_used_is_fetched_of_the_revision(tmp_path):
    unused = ("pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "model.pth", "README.md")
    used = {"tokenizer.json": b"{}", "tekken.json": b"{}", "tokenizer.model": b"m", "chat_template.jinja": b"t"}
    with hub.serving() as found:
        found.files = hub.FILES | used | dict.fromkeys(unused, b"unused")
        folder = Path(fetched(found, tmp_path, revision="v1.0"))
        assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {*hub.FILES, *used}
        assert any("/revision/v1.0" in path for path in found.of("GET"))


@pytest.mark.parametrize(
    ("fault", "says", "advises"),
    [
        ("cut always", "could not be fetched: model.safetensors: peer closed connection", REACH),
        ("circle", "could not be fetched from the hub: Exceeded maximum allowed redirects", REACH),
        ("damaged always", "comes with another checksum of model.safetensors than was stated, fetched twice", PROXY),
        ("huge", "needs 93132257.46 GiB of disk in ", "free some there, or give its cache more room"),
        ("refused", "could not be fetched from the hub: 403 Forbidden", "set HF_TOKEN to a token that may read it"),
        ("unauthorized", "could not be fetched from the hub: Client error '401 Unauthorized'", "set HF_TOKEN to a"),
        ("gated", "is gated: accept its terms on the hub and set HF_TOKEN", "set HF_TOKEN to a token that may read it"),
        ("absent", "is neither a directory nor a public repository on the hub", "for a private one, set HF_TOKEN to"),
        ("busy", "could not be fetched from the hub: Server error '503 Service Unavailable'", REACH),
    ],
)
def test_a_download_that_fails_is_one_line_and_tried_only_so_often(tmp_path, fault, says, advises):
    with hub.serving(fault) as found:
        line = fetched(found, tmp_path)
        assert line.startswith(f"refused: ModelUnavailable: model org/name {says}")
        assert advises in line
        assert len(found.asked) <= 40
    assert not list(tmp_path.glob("hub/models--org--name/snapshots/*/model.safetensors")), (
        "half a file was taken for one"
    )


@pytest.mark.parametrize(
    ("fault", "timeout_s", "says"),
    [
        ("cut always", 60, "peer closed connection without sending complete message body"),
        ("reset always", 60, "[Errno 104] Connection reset by peer"),
        ("stalls", 2, "timed out"),
    ],
)
def test_a_header_whose_connection_breaks_is_one_line_and_asked_for_once(tmp_path, fault, timeout_s, says):
    one_long_text = struct.pack("<4sIQQQ1sIQ", b"GGUF", 3, 0, 1, 1, b"a", 8, hub.LARGE) + bytes(hub.LARGE)
    with hub.serving(fault, {"m.gguf": one_long_text}) as found:
        line = fetched(found, tmp_path, code=READS_HEADER.replace("TIMEOUT_S", str(timeout_s)))
        assert line.startswith(f"refused: ModelUnavailable: the header of m.gguf cannot be read: {says}")
        assert line.endswith(REACH)
        assert len([path for path in found.of("GET") if path.endswith("/m.gguf")]) == 1


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ({"files": {**hub.FILES, "../../../../victim.json": b"{}"}}, "'../../../../victim.json' is no path in a"),
        ({"files": {**hub.FILES, "/victim.json": b"{}"}}, "'/victim.json' is no path in a"),
        ({"files": {**hub.FILES, "a//b.json": b"{}"}}, "'a//b.json' is no path in a"),
        ({"files": {**hub.FILES, "..\\b.json": b"{}"}}, "'..\\\\b.json' is no path in a"),
        ({"commit": "../../../.."}, "'../../../..' is no commit"),
        ({"commit": "main"}, "'main' is no commit"),
        ({"digest": "../victim"}, "'../victim' is no checksum of model.safetensors"),
        ({"digest": "a" * 50}, f"'{'a' * 50}' is no checksum of model.safetensors"),
    ],
)
def test_a_listing_leads_to_no_file_outside_the_repository(tmp_path, listed, says):
    victim = tmp_path / "victim.json"
    victim.write_text("of somebody else")
    with hub.serving() as found:
        for field, value in listed.items():
            setattr(found, field, value)
        line = fetched(found, tmp_path)
        assert victim.read_text() == "of somebody else"
        assert says in line
        assert line.startswith("refused: ModelUnavailable: model org/name is not fetched, as the hub's listing is")
        assert not [path for path in found.of("GET") if "/resolve/" in path]


@pytest.mark.parametrize(
    ("code", "files"),
    [
        (CODE, hub.FILES),
        (
            CODE.replace("org/name", "org/name/a-00001-of-00002.gguf"),
            {"a-00001-of-00002.gguf": b"first", "a-00002-of-00002.gguf": b"second"},
        ),
    ],
    ids=["checkpoint", "GGUF"],
)
def test_a_branch_that_moves_gives_the_files_of_the_commit_that_was_listed(tmp_path, code, files):
    with hub.serving("moves", files) as found:
        path = fetched(found, tmp_path, code=code)
        assert f"/snapshots/{hub.COMMIT}" in path
        gotten = [one.split("/resolve/")[1].split("/")[0] for one in found.of("GET") if "/resolve/" in one]
        assert gotten == [hub.COMMIT] * len(files)
        found.fault = "busy"
        assert fetched(found, tmp_path, code=code) == path, "the branch's name is known without the hub"


def test_what_a_killed_process_left_is_removed_and_not_counted(tmp_path):
    with hub.serving() as found:
        blob = (Path(fetched(found, tmp_path)) / hub.WEIGHTS).resolve()
        left = blob.with_name(f"{blob.name}.0a1b2c3d.incomplete")
        left.write_bytes(b"x" * (hub.LARGE // 2))
        blob.unlink()
        said = fetched(found, tmp_path, code=FIRST_TOLD)
        assert said == f"{len(hub.FILES['config.json'])} {sum(map(len, hub.FILES.values()))}"
    assert not left.exists()
    assert blob.read_bytes() == hub.FILES[hub.WEIGHTS]


def test_a_file_that_is_damaged_on_the_way_is_fetched_again(tmp_path):
    with hub.serving("damaged once") as found:
        folder = Path(fetched(found, tmp_path))
        assert (folder / hub.WEIGHTS).read_bytes() == hub.FILES[hub.WEIGHTS]


def test_a_damaged_file_of_a_process_that_was_killed_is_not_served(tmp_path):
    """It was renamed, and the process died before it had compared the checksum."""
    with hub.serving() as found:
        folder = Path(fetched(found, tmp_path))
        for mark in tmp_path.glob("hub/models--org--name/.checked/*"):
            mark.unlink()
        (folder / hub.WEIGHTS).resolve().write_bytes(b"x" * hub.LARGE)
        assert Path(fetched(found, tmp_path)) == folder
        assert (folder / hub.WEIGHTS).read_bytes() == hub.FILES[hub.WEIGHTS]


def test_a_whole_model_needs_no_hub(tmp_path):
    with hub.serving() as found:
        folder = Path(fetched(found, tmp_path, revision=hub.COMMIT))
        found.fault = "busy"
        assert Path(fetched(found, tmp_path, revision=hub.COMMIT, code=AT_ONCE + CODE)) == folder


@pytest.mark.parametrize(
    ("model", "files"),
    [("org/name", hub.FILES), ("org/name/a.gguf", {"a.gguf": b"weights"})],
    ids=["checkpoint", "GGUF"],
)
def test_a_hub_that_drops_packets_is_not_needed_for_what_is_whole(tmp_path, model, files):
    code = WITHOUT_HUB.replace("org/name", model)
    with hub.serving(files=files) as found:
        pinned = fetched(found, tmp_path, revision=hub.COMMIT, code=code)
        latest = fetched(found, tmp_path, code=code)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        found.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert fetched(found, tmp_path, revision=hub.COMMIT, code=code) == pinned == latest
        with pytest.raises(BlockingIOError):
            silent.accept()
        path, _, said = fetched(found, tmp_path, code=code).partition(" ")
        assert path == pinned
        assert said.startswith(
            f"model org/name is used as it is in the cache, {path}: ModelUnavailable: model org/name"
        )
        assert "could not be fetched from the hub: timed out; check the network" in said
        silent.accept()[0].close()


def test_a_commit_of_which_a_file_is_gone_is_completed(tmp_path):
    with hub.serving() as found:
        folder = Path(fetched(found, tmp_path, revision=hub.COMMIT))
        (folder / hub.WEIGHTS).resolve().unlink()
        assert Path(fetched(found, tmp_path, revision=hub.COMMIT)) == folder
        assert (folder / hub.WEIGHTS).read_bytes() == hub.FILES[hub.WEIGHTS]


@pytest.mark.parametrize(("revision", "emptied"), [("main", False), (hub.COMMIT, True)])
def test_a_model_that_is_not_whole_any_more_is_not_used_without_the_hub(tmp_path, revision, emptied):
    with hub.serving() as found:
        folder = Path(fetched(found, tmp_path, revision=revision))
        used, found.fault = folder / "config.json", "busy"
        if emptied:  # as a machine that lost its power may leave it
            used.resolve().write_bytes(b"")
        else:
            used.unlink()
        said = fetched(found, tmp_path, revision=revision, code=AT_ONCE + CODE)
        assert said.startswith(f"refused: ModelUnavailable: model org/name lacks config.json in the cache, {folder}; ")


SHARDED = {
    "config.json": b"{}",
    "model.safetensors.index.json": b'{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}',
    "1.safetensors": b"first",
    "2.safetensors": b"second",
}


@pytest.mark.parametrize("lost", ["config.json", "2.safetensors", ""])
def test_a_cache_that_another_program_has_filled_is_used_if_all_that_it_names_is_there(tmp_path, lost):
    """There is no list of the files that came."""
    with hub.serving(files=SHARDED) as found:
        folder = Path(fetched(found, tmp_path, revision=hub.COMMIT))
        shutil.rmtree(folder.parents[1] / ".checked")
        (folder / lost).unlink() if lost else None
        found.fault = "busy"
        said = fetched(found, tmp_path, revision=hub.COMMIT, code=AT_ONCE + CODE)
    if lost:
        says = (
            f"model org/name lacks {lost} in the cache, {folder}; it is fetched when the hub is reached: model org/name"
        )
        assert said.startswith(f"refused: ModelUnavailable: {says} could not be fetched from the hub: ")
    else:
        assert said == str(folder)


def test_gguf_files_in_the_cache_are_named_where_there_is_no_checkpoint(tmp_path):
    with hub.serving(files=SHARDED) as found:
        folder = Path(fetched(found, tmp_path, revision=hub.COMMIT))
        shutil.rmtree(folder.parents[1] / ".checked")
        for file in folder.iterdir():
            file.unlink()
        for name in ("b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"):
            (folder / name).write_bytes(b"GGUF")
        found.fault = "busy"
        said = fetched(found, tmp_path, revision=hub.COMMIT, code=AT_ONCE + CODE)
    assert said.startswith(
        f"refused: ModelUnavailable: model org/name has no checkpoint in the cache, {folder}; name"
        " org/name/a-00001-of-00002.gguf or org/name/b.gguf: model org/name could not be"
    )


def test_a_model_that_is_used_without_the_hub_stays_in_a_cache_with_a_limit(tmp_path):
    limit = {names.ENV_MODEL_CACHE_BYTES: str(2 * hub.LARGE)}
    with hub.serving() as found:
        fetched(found, tmp_path, **limit)
        found.fault = "busy"
        assert fetched(found, tmp_path, code=MAKES_ROOM, **limit) == "there"


def test_a_full_disk_is_said_to_be_full(tmp_path):
    """A limit of the size of files stands for it: 100 kB, and the weights have twice as much."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    with hub.serving() as found:
        line = fetched(found, tmp_path, code=limited + CODE)
    assert line.startswith("refused: ModelUnavailable: model org/name could not be stored: [Errno 27] File too large")


def test_a_revision_that_is_not_there_is_named(tmp_path):
    with hub.serving("no revision") as found:
        line = fetched(found, tmp_path, revision="v9")
    assert line == (
        "refused: ModelUnavailable: model org/name has no revision v9 on the hub; name a branch, a tag or a commit that"
        " it has"
    )


def test_bytes_are_told_while_a_download_runs(tmp_path):
    total, config = sum(map(len, hub.FILES.values())), len(hub.FILES["config.json"])
    with hub.serving(held=True) as found:
        env = {**os.environ, **found.env(tmp_path)}
        command = [sys.executable, "-c", WATCHED]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as started:
            assert started.stdout is not None
            lines = iter(started.stdout.readline, "")
            assert next(lines) == f"0 {total}\n"
            assert f"{config} {total}\n" in lines  # config.json comes, the weights wait
            found.open.set()
            assert [*lines][-1] == f"{total} {total}\n"


def test_a_token_is_not_sent_to_where_the_hub_leads(tmp_path):
    with hub.serving() as store, hub.serving("elsewhere") as found:
        found.elsewhere = store.url
        folder = Path(fetched(found, tmp_path))
        assert (folder / "model.safetensors").read_bytes() == hub.FILES["model.safetensors"]
        assert [key for _, _, key in found.asked] == [f"Bearer {TOKEN}"] * len(found.asked)
        assert store.asked
        assert {key for _, _, key in store.asked} == {""}
