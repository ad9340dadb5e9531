"""A reader of /state whose pods say what a test puts into a table, by base URL."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvasir_api import names
from kvasir_api.state import GatewayState, RuntimeState
from kvasir_kube.state_reader import Sign, unsigned


class FakeReader:
    """`says`: what each URL answers; a URL without an entry is silent. `drains`: what was asked of whom.
    `signed`: their headers.
    `introduced`: who was told of which peers; `deaf`: those that confirm nothing."""

    def __init__(self) -> None:
        self.says: dict[str, RuntimeState] = {}
        self.gateways: dict[str, GatewayState] = {}
        self.drains: list[tuple[str, bool]] = []
        self.introduced: list[tuple[str, tuple[str, ...]]] = []
        self.deaf: set[str] = set()
        self.signed: list[str] = []

    async def states(self, targets: Mapping[Any, str], *, deadline_s: float) -> dict[Any, RuntimeState]:
        return {name: self.says[base] for name, base in targets.items() if base in self.says}

    async def gateway_states(self, targets: Mapping[Any, str], *, deadline_s: float) -> dict[Any, GatewayState]:
        return {name: self.gateways[base] for name, base in targets.items() if base in self.gateways}

    async def drain(self, base: str, *, on: bool, sign: Sign = unsigned, deadline_s: float = 2.0) -> bool:
        self.drains.append((base, on))
        self.signed.append(sign("POST" if on else "DELETE", names.PATH_DRAIN))
        return True

    async def introduce(
        self, base: str, peers: Sequence[str], *, sign: Sign = unsigned, deadline_s: float = 1.0
    ) -> bool:
        self.introduced.append((base, tuple(peers)))
        return base not in self.deaf
