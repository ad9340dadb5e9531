"""Which other endpoint is named to the one that was chosen: that which holds more of a prompt, or should compute it.

Joins readings and the prefix index for `handover`. Part of the router, which alone calls it. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import structs

from kvasir_api.hashes import PIECE_BYTES
from kvasir_api.state import RuntimeState
from kvasir_gateway import routing_table
from kvasir_gateway.choose import Candidate, ChoicePolicy, RequestSize
from kvasir_gateway.handover import HandedPrompts, Handover, HandoverFacts, handover
from kvasir_gateway.parsed_objects import Endpoint
from kvasir_gateway.prefix import EndpointPrefixes
from kvasir_gateway.routing_table import RoutedService, StateReading

BYTES_PER_TOKEN: Final = 4
"""Of text, for want of a tokenizer."""
LEAST_PIECES: Final = 2
"""Of a text by which another endpoint must hold more, to be named to the one that was chosen."""


class RoutedPrompt(Protocol):
    """What routing has to know of a request. num_tokens, most_output_tokens: estimated length of the prompt, and bound
    of the answer, 0 for none. num_sequences: that it generates. session: of the client, "" for none."""

    @property
    def num_tokens(self) -> float: ...

    @property
    def most_output_tokens(self) -> int: ...

    @property
    def num_sequences(self) -> int: ...

    @property
    def session(self) -> str: ...

    def route_hashes(self, state: RuntimeState) -> tuple[bytes, ...]:
        """Of the prompt's text, with model and salt as of the pod with that state; empty for what is not cached."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerChoice:
    """header: the endpoint, as names.HEADER_KV_PEER has it; "" for none. handed: where the prompt may be computed, None
    for at the chosen endpoint alone."""

    header: str = ""
    handed: Handover | None = None


class BlockPeers:
    """prefixes: what endpoints hold. policy: of the choice."""

    def __init__(self, prefixes: EndpointPrefixes, policy: ChoicePolicy) -> None:
        self._prefixes, self._policy = prefixes, policy
        self._handed = HandedPrompts()

    def keep(self, addresses: Collection[str]) -> None:
        """Forget other endpoints."""
        self._handed.keep(addresses)

    def hand(self, handed: Handover, now_s: float) -> None:
        """A request was forwarded whose prompt another endpoint computes."""
        self._handed.add(handed.address, handed.tokens, now_s)

    def peer(
        self,
        service: RoutedService,
        chosen: Candidate,
        request: RequestSize,
        prompt: RoutedPrompt,
        readings: Mapping[str, StateReading],
        *,
        now_s: float,
    ) -> PeerChoice:
        """The one to name to the chosen endpoint, of its revision: two revisions exchange no blocks."""
        alike = _of_same_revision(service, chosen.address)
        header, held = self._holder(alike, chosen.address, prompt, readings, now_s)
        reading, prefill_addresses = readings.get(chosen.address), {e.address for e in alike if e.is_prefill}
        if not prefill_addresses or reading is None or not _hands_over(reading):
            return PeerChoice(header=header)
        kv = reading.state.kv
        facts = HandoverFacts(
            kv_bytes_per_token=kv.capacity_bytes / kv.capacity_tokens if kv.capacity_tokens > 0 else 0.0,
            bytes_per_s=max(0.0, reading.state.kv_host.fetch_bytes_per_s),
            cached_tokens=held * PIECE_BYTES / BYTES_PER_TOKEN,
        )
        prefill = self._prefill(service.within(prefill_addresses), chosen.address, prompt, readings, now_s)
        handed = handover(chosen, prefill, request, facts, policy=self._policy)
        if handed is None or not handed.pays:
            return PeerChoice(header=header, handed=handed)
        return PeerChoice(header=f"{_block_address(handed.address, readings[handed.address])};prefill", handed=handed)

    def _prefill(
        self,
        service: RoutedService,
        chosen: str,
        prompt: RoutedPrompt,
        readings: Mapping[str, StateReading],
        now_s: float,
    ) -> list[Candidate]:
        """The endpoints that may compute a prompt, with what they hold of it and what was handed to them lately."""
        found = routing_table.candidates(service, readings, now_s=now_s, inflight=lambda _: 0, since=self._handed.since)
        known: list[Candidate] = []
        for candidate in found:
            reading = readings.get(candidate.address)
            if candidate.address != chosen and reading is not None and _hands_over(reading):
                count = self._prefixes.matched(candidate.address, prompt.route_hashes(reading.state))
                known.append(structs.replace(candidate, cached_tokens=count * PIECE_BYTES / BYTES_PER_TOKEN))
        return known

    def _holder(
        self,
        endpoints: Sequence[Endpoint],
        chosen: str,
        prompt: RoutedPrompt,
        readings: Mapping[str, StateReading],
        now_s: float,
    ) -> tuple[str, int]:
        """The endpoint that holds most of a prompt, where the chosen one could fetch blocks there and holds less; one
        that drains, or is being deleted, is as good as any, since what it says itself counts; and how many pieces the
        chosen one has with them. Whether it fetches them is up to it, which has measured both."""
        reading = readings.get(chosen)
        if reading is None or not _has_block_port(reading):
            return "", 0
        own = self._prefixes.matched(chosen, prompt.route_hashes(reading.state))
        most, found = own + LEAST_PIECES - 1, ""
        for endpoint in endpoints:
            reading = readings.get(endpoint.address)
            if reading is None or endpoint.address == chosen or not _gives_blocks(reading, now_s):
                continue
            count = self._prefixes.resident(endpoint.address, prompt.route_hashes(reading.state))
            if count > most:
                most, found = count, f"{_block_address(endpoint.address, reading)};bytes={count * PIECE_BYTES}"
        return found, most if found else own


def decoding(service: RoutedService, found: list[Candidate]) -> list[Candidate]:
    """Of the candidates of a service those that requests go to while one of them serves; else all."""
    prefill = {endpoint.address for endpoint in service.endpoints if endpoint.is_prefill}
    return [candidate for candidate in found if candidate.address not in prefill] or found


def _of_same_revision(service: RoutedService, address: str) -> Sequence[Endpoint]:
    """The endpoints that have the revision of the one with this address: all of them but in a rollout."""
    own = next((endpoint.revision for endpoint in service.endpoints if endpoint.address == address), None)
    if all(endpoint.revision == own for endpoint in service.endpoints):
        return service.endpoints
    return [endpoint for endpoint in service.endpoints if endpoint.revision == own]


def _gives_blocks(reading: StateReading, now_s: float) -> bool:
    """Whether a pod lives, by its last reading, and has what was computed before."""
    is_recent = now_s - reading.at_s <= routing_table.READING_MAX_AGE_S
    return is_recent and reading.state.phase in ("ready", "draining") and _has_block_port(reading)


def _hands_over(reading: StateReading) -> bool:
    """Whether a pod computes prompts for others, and has others compute its own."""
    return reading.state.kv_prefill and _has_block_port(reading)


def _block_address(address: str, reading: StateReading) -> str:
    """Where a pod gives out its blocks."""
    return f"{address.rpartition(':')[0]}:{reading.state.kv_transfer_port}"


def _has_block_port(reading: StateReading) -> bool:
    return 0 < reading.state.kv_transfer_port < 1 << 16
