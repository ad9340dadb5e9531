"""Which endpoint holds how much of a prompt: the pods' own sets of resident prefixes, and what is on its way to them.

A pod's set is its own word, proved complete by its number and checksum (`prefix_digest`); what this gateway forwarded
since is added until a reading that began later. Nothing is credited to a pod that refused the last reading, or in which
another process serves. Knows no clock; memory is bounded by MOST_ENTRIES for each pod's set, and for what was forwarded
there, hashes that several requests have counted for each.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from kvasir_api.prefix_digest import MOST_ENTRIES, WHOLE, FollowedPrefixes

MOST_RENTS: Final = 16_384
"""Prefixes of which is remembered what keeping their requests together has cost."""
ENDED_KEPT_S: Final = 10.0
"""For which a request that has ended is remembered without a reading of its pod; by then the pod is the last choice."""


@dataclass(slots=True)
class PodPrefixes:
    """What one endpoint holds. followed: as of its last reading.

    forwarded: route hashes of requests by id, with the time when they ended; expected: how many of them have a hash.
    num_forwarded: hashes of all of them together.
    """

    followed: FollowedPrefixes = field(default_factory=FollowedPrefixes)
    instance: str = ""
    forwarded: dict[str, tuple[tuple[bytes, ...], float]] = field(default_factory=dict)
    expected: Counter[bytes] = field(default_factory=Counter)
    num_forwarded: int = 0

    def expect(self, request_id: str, route_hashes: tuple[bytes, ...]) -> None:
        """Expect what a request will leave behind."""
        self.forwarded[request_id] = (route_hashes, inf)
        self.expected.update(route_hashes)
        self.num_forwarded += len(route_hashes)

    def drop(self, ids: Iterable[str]) -> None:
        """Expect requests no more."""
        for request_id in ids:
            route_hashes, _ = self.forwarded.pop(request_id)
            self.num_forwarded -= len(route_hashes)
            for route_hash in route_hashes:
                self.expected[route_hash] -= 1
                if not self.expected[route_hash]:
                    del self.expected[route_hash]


class EndpointPrefixes:
    """The prefixes of all endpoints by address."""

    def __init__(self) -> None:
        self._pods: dict[str, PodPrefixes] = {}
        self._rents: OrderedDict[bytes, float] = OrderedDict()

    def followed(self, addresses: Collection[str]) -> Mapping[str, FollowedPrefixes]:
        """The sets that the next reading of these endpoints updates; others are forgotten."""
        self._pods = {address: self._pods.get(address) or PodPrefixes() for address in addresses}
        return {address: pod.followed for address, pod in self._pods.items()}

    def readings_taken(self, instances: Mapping[str, str], *, began_s: float) -> None:
        """A reading is over. instances: of the processes that answered, by address."""
        for address, pod in self._pods.items():
            instance = instances.get(address)
            if instance is not None:
                if instance != pod.instance and pod.instance:
                    pod.drop(list(pod.forwarded))
                pod.instance = instance
            since_s = began_s - ENDED_KEPT_S if instance is None else began_s
            pod.drop([id_ for id_, (_, ended_s) in pod.forwarded.items() if ended_s < since_s])

    def forward(self, request_id: str, address: str, route_hashes: tuple[bytes, ...]) -> None:
        """A request with these route hashes goes to an endpoint, which will hold them. Where its set is not known they
        would count for nothing, and no reading would end them."""
        pod = self._pods.get(address)
        if pod is None or pod.followed.after == WHOLE or not route_hashes:
            return
        if request_id in pod.forwarded:
            pod.drop([request_id])
        if pod.num_forwarded + len(route_hashes) <= MOST_ENTRIES:
            pod.expect(request_id, route_hashes)

    def ended(self, request_id: str, address: str, *, now_s: float) -> None:
        """A request has ended: what it left behind is in the readings that begin after it."""
        pod = self._pods.get(address)
        if pod is not None and request_id in pod.forwarded:
            pod.forwarded[request_id] = (pod.forwarded[request_id][0], now_s)

    def matched(self, address: str, route_hashes: tuple[bytes, ...]) -> int:
        """How many leading pieces of a text an endpoint holds, or will."""
        pod = self._pods.get(address)
        if pod is None or pod.followed.after == WHOLE:
            return 0
        held, expected = pod.followed.hashes, pod.expected
        for count, route_hash in enumerate(route_hashes):
            if route_hash not in held and route_hash not in expected:
                return count
        return len(route_hashes)

    def resident(self, address: str, route_hashes: tuple[bytes, ...]) -> int:
        """How many leading pieces of a text an endpoint holds by its own word, without what is on its way there."""
        pod = self._pods.get(address)
        if pod is None or pod.followed.after == WHOLE:
            return 0
        held = pod.followed.hashes
        return next((count for count, one in enumerate(route_hashes) if one not in held), len(route_hashes))

    def rent_s(self, route_hash: bytes) -> float:
        """What keeping together the requests that begin with this prefix has cost."""
        return self._rents.get(route_hash, 0.0)

    def set_rent(self, route_hash: bytes, rent_s: float) -> None:
        """Remember it; the prefixes used longest ago are forgotten."""
        self._rents.pop(route_hash, None)
        if rent_s > 0:
            self._rents[route_hash] = rent_s
        if len(self._rents) > MOST_RENTS:
            self._rents.popitem(last=False)
