"""The hashes are a contract between builds: their values are written out here and may not change silently."""

import struct

import pytest

from kvasir_api import hashes


def test_block_hash_is_fixed_for_ever():
    root = hashes.block_root(adapter="a", salt=b"s")
    assert root.hex() == "d511a47e0236236b546f0225fb56844d2737e274e75f9e857300000000000000"
    assert (
        hashes.block_hash(root, (1, 2, 3, 4)).hex()
        == "2d1a6593e5e78360ddd8e676c34bd4ba865212c001b6df0f7300000000000000"
    )


def test_route_hash_is_fixed_for_ever():
    assert [item.hex() for item in hashes.route_hashes("k" * 600, model="m")] == [
        "7f3c993ec8535dcf",
        "519c79e3e239a36e",
    ]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"adapter": "ab", "salt": b""}, {"adapter": "a", "salt": b"b"}),
        ({"adapter": "", "salt": b""}, {"adapter": "", "salt": b"\x00"}),
    ],
)
def test_roots_of_different_tenants_differ(left, right):
    assert hashes.block_root(**left) != hashes.block_root(**right)


def test_every_block_of_a_chain_names_its_owner():
    salt, chain = b"tenant-a" + b"x" * 24, []
    hashes.extend_block_hashes(chain, range(12), root=hashes.block_root(salt=salt, secret=b"z" * 32), block_size=4)
    assert {hashes.owner_of_block(one) for one in chain} == {b"tenant-a"} == {hashes.owner_of_salt(salt)}
    assert hashes.owner_of_block(hashes.block_root()) == hashes.owner_of_salt(b"") == bytes(8)
    assert {len(one) for one in chain} == {hashes.BLOCK_HASH_BYTES}


def test_a_block_knows_everything_before_it():
    root = hashes.block_root()
    first, second = hashes.block_hash(root, (1, 2)), hashes.block_hash(root, (2, 1))
    assert first != second
    assert hashes.block_hash(first, (3, 4)) != hashes.block_hash(second, (3, 4))
    assert hashes.block_hash(first, (3, 4)) != hashes.block_hash(first, (3, 4), b"image")


def test_only_full_blocks_are_hashed_and_growth_continues_the_chain():
    root, tokens = hashes.block_root(), list(range(11))
    whole: list[bytes] = []
    hashes.extend_block_hashes(whole, tokens, root=root, block_size=4)
    grown: list[bytes] = []
    for length in range(12):
        hashes.extend_block_hashes(grown, tokens[:length], root=root, block_size=4)
    assert len(whole) == 2
    assert grown == whole
    assert whole[1] == hashes.block_hash(hashes.block_hash(root, tokens[:4]), tokens[4:8])


@pytest.mark.parametrize("length", [0, 3, 4, 11, 64])
def test_hashes_of_an_array_are_those_of_its_ids(length):
    root, tokens = hashes.block_root(salt=b"s"), [7 * number % 150_000 for number in range(length)]
    one_by_one: list[bytes] = []
    hashes.extend_block_hashes(one_by_one, tokens, root=root, block_size=4)
    packed = struct.pack(f"<{length}I", *tokens)
    joined = hashes.prompt_block_hashes(packed, root=root, block_size=4)
    assert hashes.split_block_hashes(joined) == one_by_one


@pytest.mark.parametrize(("length", "pieces"), [(0, 0), (255, 0), (256, 1), (511, 1), (512, 2)])
def test_only_full_pieces_of_text_are_hashed(length, pieces):
    assert len(hashes.route_hashes("x" * length, model="m")) == pieces


def test_equal_beginnings_have_equal_route_hashes():
    left = hashes.route_hashes("a" * 256 + "b" * 256 + "c" * 256, model="m")
    right = hashes.route_hashes("a" * 256 + "b" * 256 + "d" * 256, model="m")
    assert left[:2] == right[:2]
    assert left[2] != right[2]
    assert hashes.route_hashes("a" * 256, model="n")[0] != left[0]
    assert hashes.route_hashes("a" * 256, model="m", salt=b"t")[0] != left[0]


def test_lone_surrogates_from_json_do_not_break_route_hashes():
    assert len(hashes.route_hashes("\ud800" * 256, model="m")) == 3


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "once upon"}, "once upon"),
        ({"prompt": [1, 2]}, "[1,2]"),
        ({}, ""),
        ({"messages": [{"role": "user", "content": "hi"}]}, "user\x1fhi\x1e"),
        ({"messages": [{"content": "hi", "role": "user", "name": None}], "stream": True}, "user\x1fhi\x1e"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]},
            "user\x1fab\x1e",
        ),
        ({"messages": [], "tools": [{"b": 1, "a": 2}]}, '{"a":2,"b":1}\x1e'),
        ({"messages": [], "tools": [3, {"function": {"name": "f"}}]}, '[3,{"name":"f"}]\x1e'),
        ({"input": 3}, ""),
        ({"input": [{"type": "x", "id": "i", "y": 1}]}, '\x1f\x1f{"type":"x","y":1}\x1e'),
        ({"messages": [{"type": ["x"]}], "system": 3}, 'system\x1f3\x1e\x1f\x1f{"type":["x"]}\x1e'),
        ({"messages": ["odd", None, 3]}, "odd\x1e\x1e3\x1e"),
        ({"messages": [{"role": 1, "content": {"x": 1}}]}, '1\x1f{"x":1}\x1e'),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}]},
            'assistant\x1f\x1f{"tool_calls":[{"id":"c"}]}\x1e',
        ),
    ],
)
def test_request_text_is_canonical_and_never_raises(body, text):
    assert hashes.request_text(body) == text


SCHEMA = {"type": "object"}
CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
}


@pytest.mark.parametrize(
    "body",
    [
        {
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
            "max_tokens": 5,
        },
        {
            "instructions": "s",
            "input": [
                {"role": "user", "content": "u"},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "a", "annotations": []}],
                },
            ],
            "tools": [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}],
        },
    ],
)
def test_a_chat_is_the_same_in_every_api(body):
    assert hashes.request_text(body) == hashes.request_text(CHAT)


def test_a_text_as_input_is_a_users_message():
    assert hashes.request_text({"input": "u"}) == hashes.request_text({"messages": [{"role": "user", "content": "u"}]})
