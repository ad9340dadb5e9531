"""The checksum of a block under another key is the one that reading the block gives."""

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.runner.kv_offload.renamed_crc import renamed

KEYS = st.binary(min_size=33, max_size=33)


@given(st.binary(max_size=3000), KEYS, KEYS)
def test_a_renamed_checksum_is_that_of_key_and_content(content, key, new_key):
    found = renamed(crc32(content, crc32(key)), key=key, new_key=new_key, block_bytes=len(content))
    assert found == crc32(content, crc32(new_key))
