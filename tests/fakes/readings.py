"""A reader of /state whose pods say what a test puts into a table, by base URL; and what a real gateway has read."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvasir_api import names
from kvasir_api.state import GatewayState, RuntimeState
from kvasir_kube.pod_tls import PodTls
from kvasir_kube.state_reader import Sign, unsigned

if TYPE_CHECKING:
    from fakes.gateway import Gateway


class FakeReader:
    """`says`: what each URL answers; a URL without an entry is silent, one of https also while no
    authority is known, which `unverified` counts. `drains`: what was asked of whom.
    `signed`: the headers of all calls, in their order.
    `introduced`: who was told of which peers; `peer_tokens`: of calls to these; `given`: who got which sealed keys;
    `prefetches`: who was told to fetch from whom, `prefetch_tokens` and
    `prefetch_shares` of these calls;
    `deaf`: those that confirm nothing."""

    def __init__(self) -> None:
        self.says: dict[str, RuntimeState] = {}
        self.unverified = 0
        self.gateways: dict[str, GatewayState] = {}
        self.drains: list[tuple[str, bool]] = []
        self.introduced: list[tuple[str, tuple[str, ...]]] = []
        self.given: list[tuple[str, str]] = []
        self.prefetches: list[tuple[str, str]] = []
        self.prefetch_tokens: list[str] = []
        self.prefetch_shares: list[tuple[int, int]] = []
        self.peer_tokens: dict[str, str] = {}
        self.deaf: set[str] = set()
        self.signed: list[str] = []
        self.tls = PodTls()

    async def states(self, targets: Mapping[Any, str], *, deadline_s: float) -> dict[Any, RuntimeState]:
        if self.tls.context is None:
            unverified = {name for name, base in targets.items() if base.startswith("https:")}
            self.unverified += len(unverified)
            targets = {name: base for name, base in targets.items() if name not in unverified}
        return {name: self.says[base] for name, base in targets.items() if base in self.says}

    async def gateway_states(self, targets: Mapping[Any, str], *, deadline_s: float) -> dict[Any, GatewayState]:
        return {name: self.gateways[base] for name, base in targets.items() if base in self.gateways}

    async def drain(self, base: str, *, on: bool, sign: Sign = unsigned, deadline_s: float = 2.0) -> bool:
        self.drains.append((base, on))
        self.signed.append(sign("POST" if on else "DELETE", names.PATH_DRAIN))
        return True

    async def introduce(
        self, base: str, peers: Mapping[str, str], *, sign: Sign = unsigned, deadline_s: float = 1.0
    ) -> bool:
        self.introduced.append((base, tuple(peers)))
        self.peer_tokens |= peers
        self.signed.append(sign("POST", names.PATH_PEERS))
        return base not in self.deaf

    async def prefetch(
        self,
        base: str,
        leaving: str,
        token: str,
        *,
        share: int = 0,
        shares: int = 1,
        sign: Sign = unsigned,
        deadline_s: float = 1.0,
    ) -> bool:
        self.prefetches.append((base, leaving))
        self.prefetch_shares.append((share, shares))
        self.prefetch_tokens.append(token)
        self.signed.append(sign("POST", names.PATH_PREFETCH))
        return base not in self.deaf

    async def give_keys(self, base: str, sealed: str, *, sign: Sign = unsigned, deadline_s: float = 1.0) -> bool:
        self.given.append((base, sealed))
        self.signed.append(sign("POST", names.PATH_CONTINUATION_KEYS))
        return base not in self.deaf


async def has_read(front: "Gateway", model: str, number: int, **fields: Any) -> bool:
    """Whether the picker knows what so many pods say of themselves, all of a service: its choice for a request counted
    it. fields: of that request."""
    headers = {**fields.pop("headers", {}), "x-request-id": "load"}
    await front.post(model, headers=headers, **fields)
    _, page = await front.page(f"{names.PATH_CHOICES}/load")
    found = json.loads(page).get("record", {"candidates": ()})["candidates"]
    return len(found) == number and None not in [one["load"] for one in found]
