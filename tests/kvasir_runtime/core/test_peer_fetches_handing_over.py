"""How many requests wait while another replica computes their prompts."""

from fakes.serving import request
from kvasir_api.state import KvHostState
from kvasir_runtime.core.peer_fetches import PeerFetches
from kvasir_runtime.core.plan import FetchResult, PeerBlock


def test_requests_whose_prompts_a_peer_computes_now_are_counted():
    """Not one that fetches what its peer has, nor one that has ended."""
    peers = PeerFetches(4)
    for name, computes in (("a", True), ("b", False), ("c", True), ("d", True)):
        asked = request(name, range(9), kv_peer="10.0.0.2:8002", kv_peer_computes=computes)
        peers.add(asked, b"", (PeerBlock(0, name.encode() * 33),), 1.0)
    assert list(peers.handing_over) == ["a", "c", "d"]
    first, *_ = peers.begin()
    peers.cancel("c")
    assert list(peers.handing_over) == ["a", "d"]
    peers.settle(FetchResult(number=first.number, keys=(), seconds=1.0))
    assert peers.filled(KvHostState(), int).handing_over == 1
