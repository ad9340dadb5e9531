"""Salts of what is cached of a request."""

from kvasir_runtime.frontend.sender import RequestSender


def test_a_salt_is_the_tenants_and_the_bodys_together():
    plain, one, other = RequestSender(), RequestSender(salt=b"1" * 32), RequestSender(salt=b"2" * 32)
    assert (plain.cache_salt(""), one.cache_salt("")) == (b"", b"1" * 32)
    salts = {sender.cache_salt(text) for sender in (plain, one, other) for text in ("", "x", "y")}
    assert len(salts) == 9
    assert all(len(salt) in (0, 32) for salt in salts)
    assert {one.cache_salt(text)[:8] for text in ("", "x")} == {b"1" * 8}, "blocks are the tenant's all the same"
    assert "111" not in repr(one)
