"""Signed tokens for calls to ops ports: each is of use once, for one call to one process, and for one key."""

import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import FakeClock
from kvasir_api.ops_tokens import (
    MOST_REMEMBERED,
    PUBLIC_PREFIX,
    SCHEME,
    TOLERANCE_S,
    Signer,
    Verifier,
    new_private_key,
    public_key,
)

PRIVATE = new_private_key(os.urandom)
PUBLIC = public_key(PRIVATE)
CALL = ("POST", "/drain", b"")


def parties(*, ahead_s=0.0):
    """A caller, whose clock is ahead, and the process that is called with its clock."""
    clock, caller = FakeClock(), FakeClock()
    caller.advance(ahead_s)
    return Signer(PRIVATE, wall=caller.wall, random=os.urandom), Verifier("a", wall=clock.wall), clock


def refusal(verifier, token, method="POST", target="/drain", body=b"", public=(PUBLIC,)):
    return verifier.refusal(token, method, target, body, public)


def test_a_token_is_accepted_once():
    signer, verifier, _ = parties()
    token, other = signer.authorization("a", *CALL), signer.authorization("a", *CALL)
    assert [refusal(verifier, one) for one in (token, other, token)] == ["", "", "the token was used before"]


def test_it_is_judged_before_the_body_without_a_use():
    signer, verifier, _ = parties()
    token = signer.authorization("a", *CALL)
    found = [refusal(verifier, token, body=body) for body in (None, None, b"x", b"", None)]
    assert found == ["", "", "the token is for another call", "", "the token was used before"]


@pytest.mark.parametrize(
    ("called", "why"),
    [
        ({"target": "/drain?x=1"}, "for another call"),
        ({"method": "DELETE"}, "for another call"),
        ({"body": b"x"}, "for another call"),
        ({"public": ()}, "not signed by a key that is trusted here"),
        ({"public": (public_key(new_private_key(os.urandom)),)}, "not signed by a key that is trusted here"),
        ({"public": (PUBLIC_PREFIX, "ed25519:x", "nonsense", PUBLIC)}, ""),
        ({"public": (PUBLIC, public_key(new_private_key(os.urandom)))}, ""),
    ],
)
def test_it_is_for_one_call_and_by_a_key_that_is_trusted(called, why):
    signer, verifier, _ = parties()
    found = refusal(verifier, signer.authorization("a", *CALL), **called)
    assert why in found
    assert bool(found) == bool(why)


def test_it_is_for_one_process():
    signer, verifier, _ = parties()
    assert refusal(verifier, signer.authorization("b", *CALL)) == "the token is for another process"


@pytest.mark.parametrize(("ahead_s", "accepted"), [(0, True), (-800, True), (800, True), (-1000, False), (1000, False)])
def test_clocks_may_differ_by_minutes(ahead_s, accepted):
    signer, verifier, _ = parties(ahead_s=ahead_s)
    assert (refusal(verifier, signer.authorization("a", *CALL)) == "") == accepted


def test_a_clock_that_jumps_back_makes_no_token_of_use_again():
    signer, verifier, clock = parties()
    token = signer.authorization("a", *CALL)
    assert refusal(verifier, token) == ""
    clock.jump(3 * TOLERANCE_S)
    assert "older than" in refusal(verifier, token)
    clock.jump(-3 * TOLERANCE_S)
    assert refusal(verifier, token) == "the token was used before"


def test_memory_is_bounded_and_what_is_forgotten_stays_refused():
    clock = FakeClock()
    signer, verifier = Signer(PRIVATE, wall=clock.wall, random=os.urandom), Verifier("a", wall=clock.wall)
    first = signer.authorization("a", *CALL)
    assert refusal(verifier, first) == ""
    for _ in range(MOST_REMEMBERED):
        clock.advance(0.001)
        assert refusal(verifier, signer.authorization("a", *CALL)) == ""
    assert len(verifier._accepted) == MOST_REMEMBERED
    assert refusal(verifier, first) == "the token was used before"


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer x", "Basic eA==", SCHEME + "A" * 5000, SCHEME + "\xff" * 8])
def test_what_is_no_token_is_refused(token):
    assert refusal(parties()[1], token)


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_bit_of_a_token_can_be_changed(place, bit):
    signer, verifier, _ = parties()
    token = bytearray(base64.urlsafe_b64decode(signer.authorization("a", *CALL).removeprefix(SCHEME)))
    token[place % len(token)] ^= 1 << bit
    assert refusal(verifier, SCHEME + base64.urlsafe_b64encode(token).decode())


@pytest.mark.parametrize("text", ["", "x", "AAAA", base64.b64encode(bytes(31)).decode()])
def test_a_text_that_is_no_key_is_refused_without_its_content(text):
    with pytest.raises(ValueError, match=r"^the text is no Ed25519 private key$"):
        public_key(text)
