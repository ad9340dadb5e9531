"""Groups of ranks within one process, for tests: the memory and the code of real ones, without processes."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from torch import Tensor

from kvasir_runtime.kernels import backends
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.node_collectives import NodeCollectives
from kvasir_runtime.kernels.node_stages import NodeStages
from kvasir_runtime.nodes import rendezvous
from kvasir_runtime.nodes.handshake import Membership
from kvasir_runtime.nodes.rendezvous import NodeLinks

KEY = b"a key that only nodes of tests have"


@contextmanager
def group_of(ranks: int, nodes: int = 1, stages: int = 1) -> Iterator[tuple[Collectives, ...]]:
    """So many ranks, whose operations end with the block; on so many nodes, which meet on loopback. stages: of them."""
    links = links_of(nodes) if nodes > 1 else (None,)
    group: list[Collectives] = []
    kind = NodeStages if stages > 1 else NodeCollectives
    for node, own in enumerate(links):
        locals_ = _of_one_host(ranks // nodes, stages if nodes == 1 else 1)
        if own is None:
            group += [local for local in locals_ if local is not None]
            continue
        group += [kind(local, None if index else own, node=node, nodes=nodes) for index, local in enumerate(locals_)]
    try:
        yield tuple(group)
    finally:
        for member in group:
            member.abort("the test has ended")
        for link in (link for own in links if own is not None for link in own.steps):
            link.close()


def links_of(nodes: int) -> tuple[NodeLinks, ...]:
    """Of each node, by the real rendezvous on a free port."""
    deadline = time.monotonic() + 60
    listener = rendezvous.listen("127.0.0.1", 0, deadline)
    port = listener.getsockname()[1]

    def own(node: int) -> Membership:
        return Membership(node=node, nodes=nodes, channel="", facts={})

    with ThreadPoolExecutor(nodes) as pool:
        leading = pool.submit(rendezvous.lead, listener, KEY, own(0), deadline, lambda *_: None)
        following = [
            pool.submit(rendezvous.follow, "127.0.0.1", port, KEY, own(node), deadline, lambda *_: None)
            for node in range(1, nodes)
        ]
        return together(leading, *following)


def together(*joining: Future[NodeLinks]) -> tuple[NodeLinks, ...]:
    """What each has, in their order; raises what the first that failed has raised, since others wait for it then."""
    ended, others = wait(joining, 60, FIRST_EXCEPTION)
    failed = next((future for future in ended if future.exception()), None)
    if failed is None and others:
        raise TimeoutError(f"{len(others)} of {len(joining)} nodes still wait for others")
    return tuple(future.result() for future in ([failed] if failed else joining))


def _of_one_host(ranks: int, stages: int) -> tuple[Collectives | None, ...]:
    if ranks == 1:
        return (None,)
    descriptor = backends.rank_memory(ranks, stages)
    group = tuple(backends.collectives_of(descriptor, rank, ranks, stages) for rank in range(ranks))
    os.close(descriptor)
    return group


class WithoutMemory:
    """A rank that fails before it takes part in an operation, while `fails` names that."""

    def __init__(self, member: Collectives) -> None:
        self.rank, self.ranks, self.fails = member.rank, member.ranks, ""
        self._member = member

    @property
    def failure(self) -> str:
        """The member's."""
        return self._member.failure

    def all_reduce(self, x: Tensor) -> Tensor:
        """The member's."""
        return self._able("all_reduce").all_reduce(x)

    def gather(self, x: Tensor) -> Tensor:
        """The member's."""
        return self._able("gather").gather(x)

    def broadcast(self, message: bytes) -> bytes:
        """The member's."""
        return self._able("broadcast").broadcast(message)

    def end_start(self) -> None:
        """The member's."""
        self._member.end_start()

    def abort(self, why: str) -> None:
        """The member's."""
        self._member.abort(why)

    def _able(self, operation: str) -> Collectives:
        if operation == self.fails:
            raise RuntimeError("can't allocate memory:\n1 byte")
        return self._member
