"""Salts of what is cached of a request."""

import pytest

from kvasir_runtime.frontend.sender import RequestSender


def test_a_salt_is_the_tenants_and_the_bodys_together():
    plain, one, other = RequestSender(), RequestSender(salt=b"1" * 32), RequestSender(salt=b"2" * 32)
    assert (plain.cache_salt(""), one.cache_salt("")) == (b"", b"1" * 32)
    salts = {sender.cache_salt(text) for sender in (plain, one, other) for text in ("", "x", "y")}
    assert len(salts) == 9
    assert all(len(salt) in (0, 32) for salt in salts)
    assert {one.cache_salt(text)[:8] for text in ("", "x")} == {b"1" * 8}, "blocks are the tenant's all the same"
    assert "111" not in repr(one)


@pytest.mark.parametrize(
    ("peer_bytes", "prompt_tokens", "text_bytes", "want"),
    [(4096, 1000, 8192, 500), (9000, 1000, 8192, 1000), (0, 1000, 8192, 1), (100, 10, 0, 10), (1, 3, 1000, 1)],
)
def test_what_a_peer_holds_is_a_share_of_the_prompt_as_of_the_text(peer_bytes, prompt_tokens, text_bytes, want):
    sender = RequestSender(kv_peer="10.0.0.2:8002", kv_peer_bytes=peer_bytes)
    assert sender.kv_peer_tokens(prompt_tokens, text_bytes) == want
