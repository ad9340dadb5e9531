"""Where the second tier's file is, what it is named after, and what happens where it cannot be."""

import errno
import os
import shutil

import msgspec
import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of
from kvasir_api.options import ServeOptions
from kvasir_runtime import arriving
from kvasir_runtime.errors import StartError
from kvasir_runtime.runner.kv_offload.file_store import open_store
from kvasir_runtime.runner.startup import host_tier


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def facts(model):
    return runner_of(model, num_blocks=4).facts


def options(model, folder, **given):
    return ServeOptions(model=str(model), **{"kv_host_bytes": 1 << 20, "kv_host_dir": str(folder), **given})


BLOCKS = torch.zeros((5, 4, 1000), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("option", "environment", "want"),
    [
        ("/a", {"KVASIR_KV_HOST_DIR": "/b", "HOME": "/h"}, "/a"),
        ("", {"KVASIR_KV_HOST_DIR": "/b", "XDG_CACHE_HOME": "/c"}, "/b"),
        ("", {"XDG_CACHE_HOME": "/c"}, "/c/kvasir/kv"),
    ],
)
def test_the_directory_is_the_option_then_the_variable_then_the_users_cache(option, environment, want):
    assert str(host_tier.directory(option, environment)) == want


def test_without_the_option_there_is_no_tier(model, facts, tmp_path):
    assert host_tier.transfers(options(model, tmp_path, kv_host_bytes=0), model, facts, BLOCKS) is None
    assert list(tmp_path.iterdir()) == []


def test_a_tier_has_as_many_slots_as_its_limit_holds(model, facts, tmp_path):
    made = host_tier.transfers(options(model, tmp_path), model, facts, BLOCKS)
    assert made.num_slots == (1 << 20) // (8192 + 64) - 1
    assert len(made.hash_salt) == 32
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1 << 20


def test_the_same_service_and_model_have_the_same_file(model, facts):
    name = host_tier.file_name(options(model, "/kv"), model, facts, 5000)
    assert name == host_tier.file_name(options(model, "/elsewhere", max_sequences=3), model, facts, 5000)
    assert len(bytes.fromhex(name)) == 16


@pytest.mark.parametrize(
    "other",
    [
        {"served_model_name": ("b",)},
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "int4"},
        {"quantization": "int8"},
        {"batch_invariant": True},
        {"max_model_len": 100},
        {"block_size": 32},
    ],
)
def test_another_service_or_type_has_another_file(model, facts, other):
    plain = host_tier.file_name(options(model, "/kv"), model, facts, 5000)
    assert host_tier.file_name(options(model, "/kv", **other), model, facts, 5000) != plain
    assert host_tier.file_name(options(model, "/kv"), model, facts, 5001) != plain


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json"])
def test_a_model_that_was_replaced_has_another_file(facts, tmp_path, changed):
    """The same shapes, sizes and times: two fine-tunes of one base."""
    model = checkpoints.write(tmp_path / "tiny")
    before = host_tier.file_name(options(model, "/kv"), model, facts, 5000)
    path = model / changed
    found, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 0 if changed == "config.json" else 1
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert host_tier.file_name(options(model, "/kv"), model, facts, 5000) != before


def test_a_full_disk_is_said_and_the_start_goes_on(model, facts, tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host_tier, "open_store", full)
    assert host_tier.transfers(options(model, tmp_path), model, facts, BLOCKS) is None
    assert "no second tier" in caplog.text
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"kv_host_bytes": 9000}, "--kv-host-bytes 9000 does not hold one block of 5,000 bytes"),
        ({"kv_host_dir": "/dev/null/kv"}, "--kv-host-dir /dev/null/kv: Not a directory"),
        ({"kv_host_bytes": 0, "kv_transfer_port": 0}, "--kv-transfer-port needs --kv-host-bytes"),
        ({"kv_transfer_port": 0}, "--kv-transfer-port needs --continuation-key-file"),
        ({"kv_transfer_port": 1, "pod_revision": "a", "host": "192.0.2.1"}, "cannot listen on 192.0.2.1:1"),
    ],
)
def test_options_that_cannot_be_followed_end_the_start(model, facts, tmp_path, given, why):
    with pytest.raises(StartError, match=why):
        host_tier.transfers(options(model, tmp_path, **given), model, facts, BLOCKS)


def test_another_revision_of_the_same_service_and_model_has_the_same_file(model, facts):
    """So a rollout that changes neither finds what was computed before it."""
    plain = host_tier.file_name(options(model, "/kv"), model, facts, 5000)
    assert host_tier.file_name(options(model, "/kv", pod_revision="svc-2", port=9000), model, facts, 5000) == plain
    assert host_tier.file_name(options(model, "/kv", kv_host_bytes=1 << 30), model, facts, 5000) == plain


def test_a_file_that_others_may_read_ends_the_start(model, facts, tmp_path):
    host_tier.transfers(options(model, tmp_path), model, facts, BLOCKS)
    (file,) = tmp_path.iterdir()
    file.chmod(0o640)
    with pytest.raises(StartError, match="the file belongs to another user, or others may read it"):
        host_tier.transfers(options(model, tmp_path), model, facts, BLOCKS)


def test_a_file_of_another_user_ends_the_start(model, facts, tmp_path, monkeypatch):
    host_tier.transfers(options(model, tmp_path), model, facts, BLOCKS)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StartError, match="the file belongs to another user"):
        host_tier.transfers(options(model, tmp_path), model, facts, BLOCKS)


def test_two_models_in_one_directory_have_files_of_their_own(tmp_path):
    found = {}
    for name in ("one", "two"):
        model = checkpoints.write(tmp_path / name)
        given = options(model, tmp_path / "kv", served_model_name=("svc",))
        found[name] = host_tier.transfers(given, model, runner_of(model, num_blocks=4).facts, BLOCKS).hash_salt
    assert len(list((tmp_path / "kv").iterdir())) == 2
    assert found["one"] != found["two"]


def test_blocks_are_given_to_replicas_with_the_same_model_layout_and_kernels_alone(model, facts, tmp_path):
    given = options(model, "/kv")

    def said(options=given, facts=facts, model=model, block_bytes=5000):
        return host_tier.peer_facts(options, model, facts, block_bytes)

    plain = said()
    elsewhere = tmp_path / "moved"
    shutil.copytree(model, elsewhere)
    same = options(model, "/other", port=9000, kv_host_bytes=1 << 30, max_sequences=3, prefix_warmup_seconds=9)
    assert said(same, model=elsewhere) == plain
    other_weights = checkpoints.write(tmp_path / "other", checkpoints.Shape(std=0.3))
    others = {
        "the service": said(options(model, "/kv", served_model_name=("another",))),
        "the model's content": said(model=other_weights),
        "the layout of blocks": said(block_bytes=6000),
        "the types": said(facts=msgspec.structs.replace(facts, dtype="bfloat16")),
        "the kernels": said(facts=msgspec.structs.replace(facts, kernels="others")),
        "--kv-cache-dtype": said(options(model, "/kv", kv_cache_dtype="int8")),
        "the pods' revision": said(options(model, "/kv", pod_revision="svc-2")),
        "the model's commit": said(model=shutil.copytree(model, tmp_path / "models--a--b" / "snapshots" / ("c" * 40))),
    }
    for name, other in others.items():
        assert {fact for fact in plain if plain[fact] != other[fact]} == {name}


def test_a_model_that_still_came_has_the_commit_of_the_folder_where_it_lies(model, facts, tmp_path):
    there = shutil.copytree(model, tmp_path / "models--a--b" / "snapshots" / ("c" * 40))
    raw = (there / "model.safetensors").read_bytes()
    header = raw[: 8 + int.from_bytes(raw[:8], "little")]
    coming = arriving.ArrivingFolder(
        there, arriving.Shards(headers={"model.safetensors": header}, sizes={"model.safetensors": len(raw)})
    )
    coming.arrived("model.safetensors")
    given = options(model, "/kv")
    assert host_tier.peer_facts(given, coming.path, facts, 5000) == host_tier.peer_facts(given, there, facts, 5000)


def test_a_tier_that_exchanges_blocks_has_a_port(model, facts, tmp_path):
    given = options(model, tmp_path, kv_transfer_port=0, pod_revision="a")
    transfers = host_tier.transfers(given, model, facts, BLOCKS)
    assert transfers.port > 0
    assert transfers.num_slots > 0
    transfers.close()


def test_of_a_store_that_is_not_watched_no_changes_are_kept(model, facts, tmp_path, monkeypatch):
    """The store that peers use beside the tier's: a record would grow with every block that ever was there."""
    opened = []

    def kept(*where, **given):
        opened.append(open_store(*where, **given))
        return opened[-1]

    monkeypatch.setattr(host_tier, "open_store", kept)
    given = options(model, tmp_path, kv_host_bytes=60_000, kv_transfer_port=0, pod_revision="a")
    transfers = host_tier.transfers(given, model, facts, BLOCKS)
    of_tier, of_peers = opened
    for number in range(100):
        of_peers.put([(number.to_bytes(33), bytes(5000))])
    assert of_peers.changes() is None
    changes = of_tier.changes()
    assert len(changes.added) == transfers.num_slots < 100
    transfers.close()
