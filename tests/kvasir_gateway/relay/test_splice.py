"""One stream out of what several replicas send of it: the same bytes wherever one failed and however they came."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api import names
from kvasir_gateway.relay.splice import StreamSplicer, continued

TEXT = [f'data: {{"n": {n}}}\n\n'.encode() for n in range(12)]
END = b"data: [DONE]\n\n"
WHOLE = b"".join(TEXT) + END


def replica(token, *, every=1):
    """What a replica sends that goes on from a token, which is how many events the client has, in pieces of `every`."""
    begin = int(token.split(".")[-1]) if token else 0
    sent = []
    for place, event in enumerate(TEXT[begin:], begin + 1):
        sent.append(event)
        if place % every == 0:
            sent.append(f": {names.COMMENT_CONTINUATION} {place}\n\n".encode())
    return b"".join(sent) + END


def chunks(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


@given(cuts=st.lists(st.integers(0, 700), max_size=5), size=st.integers(1, 90), every=st.integers(1, 4))
def test_the_client_gets_one_stream_wherever_replicas_fail(cuts, size, every):
    splicer, got = StreamSplicer(), b""
    for cut in cuts:
        splicer.begin()
        for chunk in chunks(replica(splicer.token, every=every)[:cut], size):
            got += splicer.feed(chunk)
        assert got == b"".join(TEXT)[: len(got)]
        assert got.count(b"\n\n") == (int(splicer.token.split(".")[-1]) if splicer.token else 0)
    splicer.begin()
    for chunk in chunks(replica(splicer.token, every=every), size):
        got += splicer.feed(chunk)
    assert got + splicer.end() == WHOLE


def test_pieces_of_a_token_are_appended_and_a_new_replica_begins_a_new_one():
    splicer = StreamSplicer()
    splicer.feed(
        b"data: 1\n\n: kvasir-continuation aa\n: kvasir-continuation bb\n\ndata: 2\n\n: kvasir-continuation c\n\n"
    )
    assert splicer.token == "aabb.c"
    splicer.begin()
    assert splicer.token == "aabb.c"
    assert splicer.feed(b"data: 3\n\n") == b""
    assert splicer.feed(b": kvasir-continuation dd\n\n") == b"data: 3\n\n"
    assert splicer.token == "dd"


def test_what_a_replica_that_leaves_says_is_not_for_the_client():
    splicer = StreamSplicer()
    assert splicer.feed(b"data: 1\n\n: kvasir-continuation a\n\n") == b"data: 1\n\n"
    assert splicer.feed(b': kvasir-handed-over draining\n\ndata: {"error": {}}\n\n') == b""
    assert splicer.handed_over == "draining"
    splicer.begin()
    assert (splicer.handed_over, splicer.feed(b"data: 2\n\n: kvasir-continuation b\n\n")) == ("", b"data: 2\n\n")


def test_signs_of_life_are_passed_on():
    splicer = StreamSplicer()
    assert splicer.feed(b": waiting\n\n") == b": waiting\n\n"


@pytest.mark.parametrize(
    "body", [b'{"model": "m", "x": 1e40}', b' \n{ "model": "m" }\n', b"{}", b"{ \n}", b'{"a": {}}']
)
def test_a_body_goes_on_with_its_token_and_is_otherwise_as_it_was(body):
    found = continued(body, "abc.def")
    assert json.loads(found) == json.loads(body) | {"continuation": "abc.def"}
    assert found.startswith(body.rstrip()[:-1])


@pytest.mark.parametrize("own", [b'"continuation": "old"', b'"continuation": null', b'"contin\\u0075ation": "old"'])
@pytest.mark.parametrize("body", [b'{%s, "model": "m"}', b'{"model": "m", %s}'])
def test_a_stream_that_began_from_a_token_of_its_client_goes_on_from_its_own(body, own):
    found = continued(body % own, "new")
    assert json.loads(found) == {"model": "m", "continuation": "new"}


def test_a_token_is_one_text_whatever_a_replica_calls_a_token():
    assert json.loads(continued(b'{"model": "m"}', 'x","model":"n')) == {"model": "m", "continuation": 'x","model":"n'}


def test_an_event_is_found_however_small_its_chunks_are():
    """So many that it takes minutes where each one costs what came before it."""
    splicer, long = StreamSplicer(), b"data: " + b"x" * (1 << 20) + b"\n\n"
    for place in range(len(long)):
        assert splicer.feed(long[place : place + 1]) == b""
    assert splicer.kept_bytes == len(long)
    assert splicer.feed(b": kvasir-continuation a\n\n") == long
    assert (splicer.kept_bytes, splicer.token) == (1, "a")


def test_a_token_of_many_pieces_is_put_together_when_it_is_read():
    splicer = StreamSplicer()
    for _ in range(1 << 17):
        splicer.feed(b": kvasir-continuation " + b"p" * 60 + b"\n\n")
    assert splicer.token == ".".join(["p" * 60] * (1 << 17))
    assert splicer.kept_bytes == len(splicer.token)


def test_only_events_that_a_token_stands_for_are_gained():
    splicer = StreamSplicer()
    assert not splicer.has_gained
    splicer.feed(b": waiting\n\n: kvasir-continuation a\n\ndata: 1\n\n")
    assert not splicer.has_gained
    splicer.feed(b": kvasir-continuation b\n\n")
    assert splicer.has_gained
    splicer.begin()
    assert not splicer.has_gained


def test_nothing_is_kept_of_what_comes_behind_a_hand_over():
    splicer = StreamSplicer()
    splicer.feed(b": kvasir-handed-over draining\n\n")
    kept = splicer.kept_bytes
    assert splicer.feed(b"data: " + b"x" * 1000) == b""
    assert splicer.kept_bytes == kept
