"""Chooses the replica of a request from what is known of all of them, and remembers what was chosen.

Joins readings, the prefix index, the load history and the requests in flight for `choose`. The picker and the simulator
call it; it knows no clock, no bodies and no Envoy.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kvasir_api.hashes import PIECE_BYTES
from kvasir_api.prefix_digest import FollowedPrefixes
from kvasir_api.state import RuntimeState
from kvasir_gateway import routing_table
from kvasir_gateway.choose import Candidate, ChoicePolicy, EndpointChoice, RequestSize, choose
from kvasir_gateway.inflight import InflightRequest, InflightRequests
from kvasir_gateway.load_history import LoadHistory
from kvasir_gateway.prefix import EndpointPrefixes
from kvasir_gateway.routing_table import RoutedService, StateReading

BYTES_PER_TOKEN: Final = 4
"""Of text, for want of a tokenizer."""
MOST_OUTPUT_TOKENS: Final = 1_000_000
"""An answer is longer on average by the counters of no pod that counts right."""


class RoutedPrompt(Protocol):
    """What routing has to know of a request. num_tokens, most_output_tokens: estimated length of the prompt, and bound
    of the answer, 0 for none. session: of the client, "" for none."""

    @property
    def num_tokens(self) -> float: ...

    @property
    def most_output_tokens(self) -> int: ...

    @property
    def session(self) -> str: ...

    def route_hashes(self, state: RuntimeState) -> tuple[bytes, ...]:
        """Of the prompt's text, with model and salt as of the pod with that state; empty for what is not cached."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest:
    """The choice for a request. route_hashes: of its text, as the endpoint that was chosen has them."""

    choice: EndpointChoice
    route_hashes: tuple[bytes, ...] = ()


class EndpointRouter:
    """draw: a non-negative random number for ties."""

    def __init__(self, *, policy: ChoicePolicy, draw: Callable[[], int]) -> None:
        self.inflight = InflightRequests()
        self._policy, self._draw = policy, draw
        self._prefixes = EndpointPrefixes()
        self._history = LoadHistory()

    def followed(self, addresses: Collection[str]) -> Mapping[str, FollowedPrefixes]:
        """The sets of prefixes that the next reading of these endpoints updates; other endpoints are forgotten."""
        self._history.keep(addresses)
        return self._prefixes.followed(addresses)

    def take_readings(self, states: Mapping[str, RuntimeState], *, began_s: float) -> None:
        """A reading of all endpoints is over; those that did not answer are absent."""
        for address, state in states.items():
            self._history.of(address).observe(state, began_s)
        self._prefixes.readings_taken({address: state.instance for address, state in states.items()}, began_s=began_s)

    def choose(
        self, service: RoutedService, prompt: RoutedPrompt, readings: Mapping[str, StateReading], *, now_s: float
    ) -> RoutedRequest | None:
        """Endpoints for a request of a service; None where none may be chosen. `forward` makes it count."""
        found = routing_table.candidates(
            service, readings, now_s=now_s, inflight=self.inflight.at, since=self.inflight.since
        )
        if not found:
            return None
        hashes, matched = self._matched(found, prompt, readings)
        known = [self._enriched(candidate, hashes, matched) for candidate in found]
        size = RequestSize(
            prompt_tokens=prompt.num_tokens,
            output_tokens=self._output_tokens([c for c in found if c.load], prompt, readings),
            session=prompt.session,
            turn=self.inflight.counts(service.key).requests,
        )
        choice = choose(known, size, policy=self._policy, seed=self._draw())
        first = choice.addresses[0]
        if choice.rented is not None:
            address, rent_s = choice.rented
            self._prefixes.set_rent(hashes[address][matched[address] - 1], rent_s)
        return RoutedRequest(choice=choice, route_hashes=hashes.get(first, ()))

    def forward(
        self, request_id: str, service: RoutedService, address: str, routed: RoutedRequest | None, *, now_s: float
    ) -> None:
        """A request goes to an endpoint. routed: None where what that has to compute is not known."""
        uncached = 0.0
        if routed is not None:
            uncached = routed.choice.uncached_tokens
            if routed.choice.is_cold:
                self._history.of(address).cold_s = now_s
        request = InflightRequest(
            id=request_id, service=service.key, address=address, uncached_tokens=uncached, added_s=now_s
        )
        if self.inflight.add(request) and routed is not None:
            self._prefixes.forward(request_id, address, routed.route_hashes)

    def ended(self, request_id: str, *, now_s: float) -> InflightRequest | None:
        """A request has ended; None when no request in flight has this id."""
        request = self.inflight.remove(request_id)
        if request is not None:
            self._prefixes.ended(request_id, request.address, now_s=now_s)
            history = self._history.of(request.address)
            history.ended += request.added_s <= history.at_s
        return request

    def broken(self, *, before_s: float, now_s: float) -> list[InflightRequest]:
        """End the requests that are older than a moment: the Envoy that forwarded them is gone."""
        return self._ended_unseen(self.inflight.remove_before(before_s), now_s)

    def lost(self, service: str, count: int, *, now_s: float) -> list[InflightRequest]:
        """End so many of a service's oldest requests, whose ends were lost."""
        return self._ended_unseen(self.inflight.remove_oldest(service, count), now_s)

    def _ended_unseen(self, requests: list[InflightRequest], now_s: float) -> list[InflightRequest]:
        for request in requests:
            self._prefixes.ended(request.id, request.address, now_s=now_s)
        return requests

    def _matched(
        self, found: list[Candidate], prompt: RoutedPrompt, readings: Mapping[str, StateReading]
    ) -> tuple[dict[str, tuple[bytes, ...]], dict[str, int]]:
        """Route hashes, and how many of them an endpoint holds, by address."""
        hashes: dict[str, tuple[bytes, ...]] = {}
        matched: dict[str, int] = {}
        if self._policy.strategy != "cost":
            return hashes, matched
        for candidate in found:
            reading = readings.get(candidate.address)
            if reading is None:
                continue
            hashes[candidate.address] = prompt.route_hashes(reading.state)
            count = self._prefixes.matched(candidate.address, hashes[candidate.address])
            if count:
                matched[candidate.address] = count
        return hashes, matched

    def _enriched(
        self, candidate: Candidate, hashes: Mapping[str, tuple[bytes, ...]], matched: Mapping[str, int]
    ) -> Candidate:
        address = candidate.address
        history, count = self._history.of(address), matched.get(address, 0)
        return replace(
            candidate,
            load=history.current(candidate.load) if candidate.load else None,
            cached_tokens=count * PIECE_BYTES / BYTES_PER_TOKEN,
            rent_s=self._prefixes.rent_s(hashes[address][count - 1]) if count else 0.0,
            cold_s=history.cold_s,
        )

    def _output_tokens(
        self, known: list[Candidate], prompt: RoutedPrompt, readings: Mapping[str, StateReading]
    ) -> float:
        """What an answer of this service has on average, or less by the request's own bound."""
        stated = [readings[candidate.address].state.totals for candidate in known]
        totals = [t for t in stated if 0 <= t.generation_tokens <= MOST_OUTPUT_TOKENS * t.completions]
        ended, tokens = sum(t.completions for t in totals), sum(t.generation_tokens for t in totals)
        mean = tokens / ended if ended > 0 else self._policy.output_tokens
        return min(mean, prompt.most_output_tokens) if prompt.most_output_tokens else mean
