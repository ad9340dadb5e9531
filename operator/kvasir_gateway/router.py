"""Chooses the replica of a request from what is known of all of them, and remembers what was chosen.

Joins readings, the prefix index, the load history and the requests in flight for `choose`. The picker and the simulator
call it; it knows no clock, no bodies and no Envoy.
"""

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from kvasir_api.hashes import PIECE_BYTES
from kvasir_api.model_route import Unavailability
from kvasir_api.prefix_digest import FollowedPrefixes, split
from kvasir_api.state import RuntimeState
from kvasir_gateway import block_peers, placements, routing_table
from kvasir_gateway.block_peers import BlockPeers, RoutedPrompt
from kvasir_gateway.choice_records import ChoiceInputs
from kvasir_gateway.choose import Candidate, ChoicePolicy, EndpointChoice, RequestSize, choose, num_taken
from kvasir_gateway.inflight import InflightRequest, InflightRequests
from kvasir_gateway.load_history import LoadHistory, SentRequests, lag_s
from kvasir_gateway.placements import RequestPlacement
from kvasir_gateway.prefix import EndpointPrefixes
from kvasir_gateway.routing_table import RoutedService, StateReading

MOST_ELSEWHERE: Final = 65_536
"""Requests in flight of another gateway; where there are more, their ends were lost."""
MOST_OUTPUT_TOKENS: Final = 1_000_000
"""An answer is longer on average by the counters of no pod that counts right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest:
    """The choice for a request. route_hashes: of its text, as the endpoint that was chosen has them. rented: the prefix
    for which requests are kept together, empty for none, and what that has cost so far. inputs: of the choice. kv_peer:
    another endpoint that holds more of the text, or computes it, as names.HEADER_KV_PEER has it; "" for
    none."""

    choice: EndpointChoice
    inputs: ChoiceInputs
    route_hashes: tuple[bytes, ...] = ()
    rented: tuple[bytes, float] = (b"", 0.0)
    kv_peer: str = ""

    def num_taken(self, address: str) -> int:
        """Sequences that the request counts as at an endpoint."""
        wanted = self.inputs.request.num_sequences
        load = next((found.load for found in self.inputs.candidates if found.address == address), None)
        return num_taken(load, wanted) if load is not None else wanted


class EndpointRouter:
    """draw: a non-negative random number for ties.

    inflight: what this gateway forwarded. What others did counts as well, but for what the autoscaler reads. number: of
    this one among all gateways.
    """

    def __init__(self, *, policy: ChoicePolicy, draw: Callable[[], int]) -> None:
        self.inflight, self._elsewhere = InflightRequests(), InflightRequests()
        self.number = 0
        self._policy, self._draw = policy, draw
        self._prefixes = EndpointPrefixes()
        self._history = LoadHistory()
        self._block_peers = BlockPeers(self._prefixes, policy)

    def followed(self, addresses: Collection[str]) -> Mapping[str, FollowedPrefixes]:
        """The sets of prefixes that the next reading of these endpoints updates; other endpoints are forgotten."""
        self._history.keep(addresses)
        self._block_peers.keep(addresses)
        return self._prefixes.followed(addresses)

    def take_readings(self, states: Mapping[str, RuntimeState], *, began_s: float) -> None:
        """A reading of all endpoints is over; those that did not answer are absent."""
        for address, state in states.items():
            self._history.of(address).observe(state, began_s, self._sent(address, began_s, lag_s(state)))
        self._prefixes.readings_taken({address: state.instance for address, state in states.items()}, began_s=began_s)

    def choose(
        self, service: RoutedService, prompt: RoutedPrompt, readings: Mapping[str, StateReading], *, now_s: float
    ) -> RoutedRequest | None:
        """Endpoints for a request of a service; None where none may be chosen. `forward` makes it count."""
        at = self.inflight.at
        found = routing_table.candidates(service, readings, now_s=now_s, inflight=at, since=self._since)
        found = block_peers.decoding(service, found)
        if not found:
            return None
        hashes, matched = self._matched(found, prompt, readings)
        known = [self._enriched(candidate, hashes, matched) for candidate in found]
        size = RequestSize(
            prompt_tokens=prompt.num_tokens,
            output_tokens=self._output_tokens([c for c in found if c.load], prompt, readings),
            session=prompt.session,
            turn=self.inflight.counts(service.key).requests,
            gateway=self.number,
            num_sequences=prompt.num_sequences,
        )
        inputs = ChoiceInputs(candidates=known, request=size, seed=self._draw())
        choice = choose(known, size, policy=self._policy, seed=inputs.seed)
        rented = (b"", 0.0)
        if choice.rented is not None:
            address, rent_s = choice.rented
            rented = hashes[address][matched[address] - 1], rent_s
        chosen = choice.addresses[0]
        first = next(candidate for candidate in known if candidate.address == chosen)
        peer = self._block_peers.peer(service, first, size, prompt, readings, now_s=now_s)
        inputs = replace(inputs, handed=peer.handed)
        if peer.handed is not None and peer.handed.pays:
            choice = replace(choice, uncached_tokens=1.0)
        return RoutedRequest(
            choice=choice,
            inputs=inputs,
            route_hashes=hashes.get(chosen, ()),
            rented=rented,
            kv_peer=peer.header,
        )

    def forward(
        self,
        request_id: str,
        service: RoutedService,
        address: str,
        routed: RoutedRequest | None,
        *,
        now_s: float,
        answer: str = "",
    ) -> RequestPlacement | None:
        """A request goes to an endpoint. Returns what other gateways have to know; None when it has ended already.

        routed: None where what the endpoint has to compute is not known. answer: of another one that goes on there.
        """
        answer = answer if len(answer) <= placements.MOST_NAME else ""
        placement = RequestPlacement(id=request_id, address=address, answer=answer)
        hashes = routed.route_hashes if routed is not None else ()
        if routed is not None:
            if routed.inputs.handed is not None and routed.inputs.handed.pays:
                self._block_peers.hand(routed.inputs.handed, now_s)
            if routed.rented[0]:
                self._prefixes.set_rent(*routed.rented)
            placement = msgspec.structs.replace(
                placement,
                num_sequences=routed.num_taken(address),
                uncached_tokens=routed.choice.uncached_tokens,
                cold=routed.choice.is_cold,
                route_hashes=b"".join(hashes[: placements.MOST_HASHES]),
                rented=routed.rented[0],
                rent_s=routed.rented[1],
            )
        return placement if self._place(self.inflight, service.key, placement, hashes, now_s) else None

    def forwarded_elsewhere(self, gateway: str, placement: RequestPlacement, *, now_s: float) -> None:
        """Another gateway sent a request to an endpoint."""
        here = msgspec.structs.replace(placement, id=_elsewhere_id(gateway, placement.id))
        self._place(self._elsewhere, gateway, here, tuple(split(placement.route_hashes)), now_s)
        if placement.rented:
            self._prefixes.set_rent(placement.rented, placement.rent_s)
        if self._elsewhere.counts(gateway).inflight > MOST_ELSEWHERE:
            self._ended_unseen(self._elsewhere.remove_oldest(gateway, 1), now_s)

    def ended_elsewhere(self, gateway: str, request_id: str, *, now_s: float) -> None:
        """A request that another gateway forwarded has ended."""
        self._end(self._elsewhere, _elsewhere_id(gateway, request_id), now_s)

    def gateway_left(self, gateway: str, *, now_s: float) -> None:
        """Another gateway is not heard any more; readings show what is left of what it forwarded."""
        count = self._elsewhere.counts(gateway).inflight
        self._ended_unseen(self._elsewhere.remove_oldest(gateway, count), now_s)

    def went_on_at(self, answer: str) -> str:
        """The address at which an answer of another endpoint goes on, through any gateway; "" for none."""
        return self.inflight.went_on_at(answer) or self._elsewhere.went_on_at(answer)

    def elsewhere(self, address: str) -> int:
        """Requests of other gateways in flight at an address, as far as is known."""
        return self._elsewhere.at(address)

    def ended(self, request_id: str, *, now_s: float) -> InflightRequest | None:
        """A request has ended; None when no request in flight has this id."""
        return self._end(self.inflight, request_id, now_s)

    def broken(self, *, before_s: float, now_s: float, keep: Container[str] = ()) -> list[InflightRequest]:
        """End the requests that are older than a moment: the Envoy that forwarded them is gone. keep: ids of those that
        it did not forward."""
        return self._ended_unseen(self.inflight.remove_before(before_s, keep=keep), now_s)

    def lost(self, service: str, count: int, *, now_s: float, keep: Container[str] = ()) -> list[InflightRequest]:
        """End so many of a service's oldest requests, whose ends were lost. keep: ids of those whose ends are not."""
        return self._ended_unseen(self.inflight.remove_oldest(service, count, keep=keep), now_s)

    def _ended_unseen(self, requests: list[InflightRequest], now_s: float) -> list[InflightRequest]:
        for request in requests:
            self._prefixes.ended(request.id, request.address, now_s=now_s)
        return requests

    def _place(
        self,
        inflight: InflightRequests,
        service: str,
        placement: RequestPlacement,
        hashes: tuple[bytes, ...],
        now_s: float,
    ) -> bool:
        """Count a request that goes to an endpoint; False when it has ended already. service: of those elsewhere their
        gateway."""
        history = self._history.of(placement.address)
        history.sent_s = now_s
        if placement.cold:
            history.cold_s = now_s
        request = InflightRequest(
            id=placement.id,
            service=service,
            address=placement.address,
            uncached_tokens=placement.uncached_tokens,
            added_s=now_s,
            answer=placement.answer,
            num_sequences=placement.num_sequences,
        )
        if not inflight.add(request):
            return False
        self._prefixes.forward(placement.id, placement.address, hashes)
        return True

    def _end(self, inflight: InflightRequests, request_id: str, now_s: float) -> InflightRequest | None:
        request = inflight.remove(request_id)
        if request is not None:
            self._prefixes.ended(request_id, request.address, now_s=now_s)
            history = self._history.of(request.address)
            history.ended += request.num_sequences * (request.added_s <= min(history.at_s, history.seen_s))
        return request

    def _since(self, address: str, moment_s: float) -> tuple[int, float]:
        """Sequences of all gateways that are newer than a moment, or that the last reading does not count yet, and
        their uncached tokens."""
        moment_s = min(moment_s, self._history.of(address).seen_s)
        requests, tokens = self.inflight.since(address, moment_s)
        others, their_tokens = self._elsewhere.since(address, moment_s)
        return requests + others, tokens + their_tokens

    def _sent(self, address: str, moment_s: float, lag_s: float) -> SentRequests:
        """What all gateways have sent to an endpoint by a moment, in sequences, as its readings count them."""
        both = (self.inflight, self._elsewhere)
        newer = sum(one.since(address, moment_s)[0] for one in both)
        newest = sorted((s for one in both for s in one.times(address, moment_s - lag_s, moment_s)), reverse=True)
        return SentRequests(sum(one.sequences_at(address) for one in both) - newer, newest)

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
        return msgspec.structs.replace(
            candidate,
            load=history.current(candidate.load) if candidate.load else None,
            cached_tokens=count * PIECE_BYTES / block_peers.BYTES_PER_TOKEN,
            rent_s=self._prefixes.rent_s(hashes[address][count - 1]) if count else 0.0,
            cold_s=history.cold_s,
            sent_s=history.sent_s,
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


def unavailability(
    service: RoutedService | None,
    routed: RoutedRequest | None,
    readings: Mapping[str, StateReading],
    *,
    saturated_s: float | None,
) -> Unavailability | None:
    """Why a service should not have a request, None where it can. service: None where it does not exist. routed: the
    choice in it, None where no endpoint may be chosen. saturated_s: a longer wait for its turn is too long."""
    if routed is None:
        return "AtZero" if service is not None and service.may_start else "Stalled"
    if routed.choice.is_saturated:
        return "Saturated"
    reading = readings.get(routed.choice.addresses[0])
    if reading is not None and reading.state.stalled_s > 0:
        return "Stalled"
    waits_s = [cost.wait_s for cost in routed.choice.costs]
    return "Saturated" if saturated_s is not None and waits_s and min(waits_s) >= saturated_s else None


def _elsewhere_id(gateway: str, request_id: str) -> str:
    return f"{gateway}/{request_id}"
