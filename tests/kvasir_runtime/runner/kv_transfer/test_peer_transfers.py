"""A tier that exchanges blocks: what its copies and its fetches have to do with one another."""

import threading

import pytest

from fakes.kv_peers import FACTS, KEY
from fakes.store_process import opened
from kvasir_runtime.core.plan import BlockFetch, PeerBlock, StepPlan
from kvasir_runtime.nodes.listening import bind
from kvasir_runtime.runner.kv_transfer.peer_transfers import PeerTransfers
from kvasir_runtime.wire import packed_ids

LONG_S = 60.0


class FullTier:
    """Takes no copies."""

    def submit(self, plan):
        raise RuntimeError("can't start new thread")


def test_a_fetch_ends_also_where_the_copies_of_its_plan_fail(tmp_path):
    changed = threading.Condition()
    listener = bind("127.0.0.1", 0, "--kv-transfer-port")
    transfers = PeerTransfers(FullTier(), changed, opened(tmp_path), listener, FACTS, 4)
    transfers.use_keys((KEY,))
    blocks = (PeerBlock(0, bytes(33)),)
    fetch = BlockFetch(number=1, peer="127.0.0.1:1", within_s=0.3, salt=b"", tokens=packed_ids(range(4)), blocks=blocks)
    with pytest.raises(RuntimeError):
        transfers.submit(StepPlan(step=1, fetches=(fetch,)))
    with changed:
        assert changed.wait_for(lambda: transfers._fetcher.has_ended, LONG_S)
        assert [(one.number, one.failed) for one in transfers._fetcher.take()] == [(1, True)]
    transfers.close()
