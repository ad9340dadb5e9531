"""The document of ended requests between a replica and gateways."""

import msgspec
import pytest

from kvasir_api import ended_requests
from kvasir_api.ended_requests import EndedRequest, EndedRequests


def test_it_comes_back_as_it_was():
    document = EndedRequests(
        instance="i", last=3, requests=(EndedRequest(id="a", prompt_tokens=1), EndedRequest(id="b"))
    )
    assert ended_requests.decode(ended_requests.encode(document)) == document


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b'{"instance": "i", "last": 1, "requests": [{"id": "a", "prompt_tokens": -1}]}',
        b'{"instance": "i", "last": 1, "requests": [{"id": "a", "completion_tokens": 1e12}]}',
        b'{"instance": "i", "last": 1, "requests": [{"id": "a", "first_token_s": -2}]}',
    ],
)
def test_numbers_that_cannot_be_true_are_refused(text):
    with pytest.raises(msgspec.MsgspecError):
        ended_requests.decode(text)
