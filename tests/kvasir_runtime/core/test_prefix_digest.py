"""The digest lists what a prefix hit would find, most recently used first, and is bounded."""

from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.prefix_digest import DIGEST_ENTRIES, TRACKED_ENTRIES, PrefixDigest


def resident(pool, *hashes):
    blocks = pool.take(len(hashes))
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.publish(block, block_hash)
    return blocks


def test_pieces_follow_blocks_by_proportion():
    pool, digest = BlockPool(8), PrefixDigest()
    digest.note((b"\x01", b"\x02", b"\x03"), (b"a", b"b", b"c", b"d", b"e", b"f"))
    resident(pool, b"a", b"b", b"c", b"d")
    assert digest.published(pool) == ("01", "02")


def test_the_last_used_prompt_comes_first():
    pool, digest = BlockPool(8), PrefixDigest()
    resident(pool, b"a", b"b")
    digest.note((b"\x01",), (b"a",))
    digest.note((b"\x02",), (b"b",))
    digest.note((b"\x01",), (b"a",))
    assert digest.published(pool) == ("01", "02")


def test_evicted_prefixes_disappear():
    pool, digest = BlockPool(2), PrefixDigest()
    pool.release(resident(pool, b"a", b"b"))
    digest.note((b"\x01", b"\x02"), (b"a", b"b"))
    assert digest.published(pool) == ("01", "02")
    pool.take(1)
    assert digest.published(pool) == ("01",)


def test_a_prompt_without_full_block_or_piece_is_not_listed():
    pool, digest = BlockPool(2), PrefixDigest()
    digest.note((), (b"a",))
    digest.note((b"\x01",), ())
    assert digest.published(pool) == ()


def test_it_is_bounded():
    pool, digest = BlockPool(2), PrefixDigest()
    resident(pool, b"a")
    digest.note([number.to_bytes(8, "big") for number in range(3 * TRACKED_ENTRIES)], (b"a",))
    published = digest.published(pool)
    assert len(published) == DIGEST_ENTRIES
    assert published[0] == "0" * 16
