"""A GGUF file's header is read as its writer meant it, and a hostile one is refused in one line, quickly."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes import checkpoints, ggufs
from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf import hf_config, reader

SMALL = checkpoints.Shape(hidden_size=32, num_layers=1, head_dim=8, intermediate_size=32, vocab_size=300)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return ggufs.write(checkpoints.write(folder / "model", SMALL), folder / "model.gguf", kind="Q8_0")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(keys: bytes = b"", *, num_keys: int = 0, num_tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + keys


def tensor(name: str = "t", sizes: tuple[int, ...] = (32,), kind: int = 0, start: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + dims + struct.pack("<IQ", kind, start)


ONE = {"num_tensors": 1}
HOSTILE = {
    "empty": (b"", "is not a GGUF file"),
    "another format": (b"PK\x03\x04" + bytes(60), "does not begin with GGUF"),
    "only magic": (b"GGUF", "ends before the end of its header"),
    "version 1": (header(version=1), "GGUF version 1 is not supported"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "2^64 keys": (header(num_keys=2**64 - 1), "ends before the end of its metadata keys"),
    "2^64 tensors": (header(num_tensors=2**64 - 1), "ends before the end of its tensors"),
    "long key": (header(struct.pack("<Q", 2**63) + bytes(40), num_keys=1), "a metadata key of 9,223"),
    "long string": (header(text("k") + struct.pack("<IQ", 8, 2**62) + bytes(9), num_keys=1), "end of its k"),
    "long array": (header(text("k") + struct.pack("<IIQ", 9, 4, 2**62) + bytes(9), num_keys=1), "end of its k"),
    "long string in an array": (
        header(text("k") + struct.pack("<IIQQ", 9, 8, 1, 2**63) + bytes(9), num_keys=1),
        "end of its k",
    ),
    "array of arrays": (
        header(text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64), num_keys=1),
        "array of the unsupported type 9",
    ),
    "unknown type": (header(text("k") + struct.pack("<I", 99) + bytes(9), num_keys=1), "k has the unknown type 99"),
    "key twice": (header((text("k") + struct.pack("<IB", 0, 1)) * 2, num_keys=2), "metadata key k occurs twice"),
    "no UTF-8": (header(struct.pack("<Q", 2) + b"\xff\xfe" + bytes(20), num_keys=1), "metadata key is not UTF-8"),
    "alignment 3": (
        header(text("general.alignment") + struct.pack("<II", 4, 3), num_keys=1),
        "general.alignment is 3",
    ),
    "outside": (header(tensor(sizes=(64,)), **ONE) + bytes(200), "tensor t takes bytes"),
    "offset 2^63": (header(tensor(start=2**63), **ONE) + bytes(200), "tensor t takes bytes"),
    "crooked offset": (header(tensor(start=1), **ONE) + bytes(400), "tensor t takes bytes"),
    "sizes that overflow": (header(tensor(sizes=(2**32, 2**32)), **ONE) + bytes(99), "tensor t takes bytes"),
    "no elements": (header(tensor(sizes=(0, 5)), **ONE) + bytes(99), "no whole blocks"),
    "nine dimensions": (header(tensor(sizes=(1,) * 9), **ONE) + bytes(99), "has 9 dimensions"),
    "half a block": (header(tensor(sizes=(33,), kind=8), **ONE) + bytes(999), "no whole blocks of 32"),
    "type not served": (header(tensor(kind=16), **ONE) + bytes(999), "type IQ2_XXS, which is not supported"),
    "type unknown": (header(tensor(kind=77), **ONE) + bytes(999), "type number 77"),
    "tensor twice": (header(tensor(sizes=(1,)) * 2, num_tensors=2) + bytes(999), "tensor t occurs twice"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    content, reason = HOSTILE[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        reader.read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_header_is_read_as_it_was_written(good: Path) -> None:
    read = reader.read(good)
    assert read.text("general.architecture") == "llama"
    assert read.integer("llama.embedding_length") == 32
    assert read.flag("tokenizer.ggml.add_bos_token", True) is False
    assert read.tensors["token_embd.weight"].shape == (300, 32)
    assert read.tensors["token_embd.weight"].kind.name == "Q8_0"
    assert len(read.texts("tokenizer.ggml.tokens")) == len(read.numbers("tokenizer.ggml.token_type")) == 300


def test_every_cut_is_refused(good: Path, tmp_path: Path) -> None:
    whole, path = good.read_bytes(), tmp_path / "cut.gguf"
    last = max(entry.start + entry.num_bytes for entry in reader.read(good).tensors.values())
    for length in (*range(0, 200, 7), *range(200, last, 997), last - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            reader.read(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 9000), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))
def test_changed_bytes_give_a_file_or_a_refusal(good: Path, tmp_path: Path, changes: list[tuple[int, bytes]]) -> None:
    content = bytearray(good.read_bytes())
    for at, replacement in changes:
        content[at : at + len(replacement)] = replacement
    path = tmp_path / "changed.gguf"
    path.write_bytes(content)
    try:
        read = reader.read(path)
        hf_config.config(read)
    except ModelError:
        return
    assert all(entry.start + entry.num_bytes <= len(content) for entry in read.tensors.values())


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"llama__attention__head_count": 0}, "0 heads"),
        ({"llama__attention__head_count": "four"}, "expected an integer"),
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__expert_count": 8}, "tensor blk.0.ffn_gate_exps.weight is missing"),
        ({"llama__rope__dimension_count": 4}, "differs from the heads' width 8"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, keys: dict[str, object], reason: str) -> None:
    source = checkpoints.write(tmp_path / "model", SMALL)
    path = ggufs.write(source, tmp_path / "model.gguf", **keys)
    with pytest.raises(ModelError, match=reason):
        hf_config.config(reader.read(path))


def test_config_ends_answers_where_a_chat_ends(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "model", SMALL)
    path = ggufs.write(source, tmp_path / "model.gguf", tokenizer__ggml__eot_token_id=7)
    # 0 is <|endoftext|>, 2 is <|im_end|>, a control token known by its spelling.
    assert hf_config.config(reader.read(path))["eos_token_id"] == [0, 7, 2]
