"""Reads the nodes of replicas when one of them must leave or the other pods of one are made, and all nodes where models
are fetched ahead.

Nodes are not watched: there may be thousands, and they matter for seconds. Where nodes may not be read, as in an
installation for one namespace, replicas are told apart by their work alone.
"""

import logging
import math
from dataclasses import replace
from typing import Final

from msgspec import structs

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError, NotFoundError
from kvasir_kube.kinds import NODE, Json
from kvasir_operator.desired import node_set
from kvasir_operator.loop.clock import Clock
from kvasir_operator.observed.candidate_node import CandidateNode, candidate_node
from kvasir_operator.observed.node import GONE, NodeLifetime, node_lifetime
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed

LOG: Final = logging.getLogger(__name__)
KNOWN_S: Final = 30.0
"""A node that was read is not read again for so long."""
FORBIDDEN_S: Final = 3600.0
LISTED_S: Final = 60.0
MOST_KNOWN: Final = 4096


class NodeReader:
    """Nodes by name, each with the steady second at which it was read."""

    def __init__(self, cluster: Cluster, *, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._known: dict[str, tuple[float, NodeLifetime]] = {}
        self._forbidden_until = clock.steady()
        self._candidates: tuple[CandidateNode, ...] = ()
        self._listed_at = -math.inf

    async def marked(self, seen: Observed, *, wanted: int) -> Observed:
        """The service with the nodes of its replicas, if more of them run than are wanted."""
        live = [r for r in seen.replicas if r.live]
        if len(live) <= wanted or not wanted or self._clock.steady() < self._forbidden_until:
            return seen
        return replace(seen, replicas=tuple([await self._marked(r) for r in seen.replicas]))

    async def placed(self, seen: Observed) -> Observed:
        """The service with the domains of those replicas whose other pods are to be made."""
        found: dict[str, tuple[tuple[str, str], ...]] = {}
        for r, revision in node_set.lacking(seen):
            known = (await self._node(r.node)).labels if r.node else {}
            found[r.uid] = tuple((key, known[key]) for key in node_set.domain_keys(revision) if key in known)
        if not any(found.values()):
            return seen
        return replace(seen, replicas=tuple(structs.replace(r, domains=found.get(r.uid, ())) for r in seen.replicas))

    async def candidates(self) -> tuple[CandidateNode, ...]:
        """Where a replica may come, by the last list that succeeded; none where nodes may not be listed."""
        now = self._clock.steady()
        if now - self._listed_at < LISTED_S:
            return self._candidates
        self._listed_at = now  # one that fails is not repeated at once either
        try:
            listed = await self._cluster.list(NODE, transform=_of_candidates)
        except KubeError as error:
            LOG.info("nodes cannot be listed, where models may be fetched ahead of a replica: %s", error)
            if error.status == 403:
                self._candidates = ()
        else:
            self._candidates = tuple(map(candidate_node, listed.items))
        return self._candidates

    async def _marked(self, r: Replica) -> Replica:
        if not r.node or not r.live:
            return r
        found = [await self._node(name) for name in dict.fromkeys([r.node, *(node.node for node in r.nodes)]) if name]
        return structs.replace(r, node_leaves=any(n.leaving for n in found), spot=any(n.spot for n in found))

    async def _node(self, name: str) -> NodeLifetime:
        now = self._clock.steady()
        if now < self._forbidden_until:
            return NodeLifetime()
        at, known = self._known.get(name, (-KNOWN_S, NodeLifetime()))
        if now - at < KNOWN_S:
            return known
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        try:
            known = node_lifetime(await self._cluster.get(NODE, "", name))
        except NotFoundError:
            known = GONE
        except KubeError as error:
            if error.status == 403:
                LOG.info("nodes may not be read, so the choice of a replica that leaves ignores them: %s", error)
                self._forbidden_until = now + FORBIDDEN_S
            return NodeLifetime()
        self._known[name] = (now, known)
        return known


def _of_candidates(obj: Json) -> Json:
    """What is read of a node: its images alone are many kilobytes."""
    status = obj.get("status") or {}
    kept = {part: status[part] for part in ("allocatable", "conditions") if part in status}
    return {"metadata": obj["metadata"], "spec": obj.get("spec") or {}, "status": kept}
