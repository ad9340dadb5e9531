"""Runs a workload under a strategy: the gateway's router and its protocol of readings before simulated pods.

Events are handled in the order of their times; nothing is timed, so the same arguments give the same result.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import ceil
from multiprocessing import get_context
from random import Random
from typing import Any, Final

from kvasir_api.state import RuntimeState
from kvasir_gateway.choose import ChoicePolicy, Strategy
from kvasir_gateway.parsed_objects import Endpoint
from kvasir_gateway.placements import PlacementEnd, PlacementEvent, RequestPlacement
from kvasir_gateway.router import EndpointRouter
from kvasir_gateway.routing_table import RoutedService, StateReading
from kvasir_gateway.simulation.simulated_pod import PIECE_TOKENS, DigestLog, PodRequest, SimulatedPod
from kvasir_gateway.simulation.workloads import WORKLOADS, Pieces, RoutingWorkload, SimulatedConversation

READING_PERIOD_S: Final = 0.5
HEARD_AFTER_S: Final = 0.002
"""What a picker forwards is known to the others so much later: an event loop that is busy, twice, and a network."""
TIMEOUT_S: Final = 3600.0


@dataclass(slots=True)
class PickerRun:
    """One picker with what it has read."""

    router: EndpointRouter
    readings: dict[str, StateReading] = field(default_factory=dict)


@dataclass(slots=True)
class SimulatedPrompt:
    """A request as routing sees it."""

    pieces: tuple[bytes, ...]
    most_output_tokens: int = 0
    num_sequences: int = 1
    session: str = ""

    @property
    def num_tokens(self) -> float:
        """Of the prompt."""
        return float(PIECE_TOKENS * len(self.pieces))

    def route_hashes(self, _state: RuntimeState) -> tuple[bytes, ...]:
        """Pieces stand for their hashes."""
        return self.pieces


@dataclass(slots=True)
class TalkState:
    """A conversation under way. said: its text so far; left: answers of the turn that are not there yet."""

    conversation: SimulatedConversation
    said: tuple[bytes, ...]
    turn: int = 0
    left: int = 0


class RoutingRun:
    """One workload under one strategy, with a number of pickers."""

    def __init__(self, workload: RoutingWorkload, policy: ChoicePolicy, *, pickers: int = 1) -> None:
        self._workload, self._random, self._pieces = workload, Random(workload.seed), Pieces()
        self._routing_random = Random(workload.seed + 1)
        self.pods = [SimulatedPod(f"pod-{n}:8000", speed) for n, speed in enumerate(workload.speeds)]
        self._logs = [DigestLog(pod) for pod in self.pods]
        self._pickers = [
            PickerRun(EndpointRouter(policy=policy, draw=lambda: self._routing_random.randrange(1 << 32)))
            for _ in range(pickers)
        ]
        for number, picker in enumerate(self._pickers):
            picker.router.number = number
        endpoints = [
            Endpoint(pod=pod.address, address=pod.address, ops_url="", takes_requests=True) for pod in self.pods
        ]
        self._service = RoutedService(namespace="n", name="s", model="m", created="", endpoints=tuple(endpoints))
        self._events: list[tuple[float, int, str, Any]] = []
        self._order, self._numbers = count(), count()
        self._stepping: set[str] = set()
        self._owners: dict[int, tuple[TalkState, PickerRun]] = {}
        self._seen: set[bytes] = set()
        self.seconds = workload.seconds
        self.requests: list[PodRequest] = []
        self.placed: list[int] = [0] * len(self.pods)
        self.available_pieces = 0

    def run(self) -> None:
        """Until all conversations that began have ended."""
        for at in self._workload.arrivals(self._random):
            self._at(at, "begin", None)
        self._at(0.0, "read", None)
        while self._events:
            now, _, kind, what = heappop(self._events)
            if now > TIMEOUT_S:
                return
            match kind:
                case "begin":
                    conversation = self._workload.talk(self._random, self._pieces)
                    self._say(TalkState(conversation, conversation.prefix), now)
                case "turn":
                    self._say(what, now)
                case "step":
                    self._step(what, now)
                case "read":
                    self._read(now)
                case "hear":
                    listener, event = what
                    self._hear(listener, event, now)

    def _at(self, at: float, kind: str, what: Any) -> None:
        heappush(self._events, (at, next(self._order), kind, what))

    def _say(self, talk: TalkState, now: float) -> None:
        turn = talk.conversation.turns[talk.turn]
        talk.said += self._pieces.new(turn.tokens)
        talk.left = talk.conversation.samples
        for _ in range(talk.conversation.samples):
            answer = self._pieces.new(turn.output)
            request = PodRequest(
                number=next(self._numbers), at=now, pieces=talk.said, answer=answer, output=turn.output
            )
            self._route(request, talk, now)

    def _route(self, request: PodRequest, talk: TalkState, now: float) -> None:
        seen = next((n for n, piece in enumerate(request.pieces) if piece not in self._seen), len(request.pieces))
        self.available_pieces += min(seen, len(request.pieces) - 1)
        self._seen.update(request.pieces)
        picker = self._pickers[self._routing_random.randrange(len(self._pickers))]
        picker.router.inflight.counts(self._service.key).requests += 1
        routed = picker.router.choose(self._service, SimulatedPrompt(request.pieces), picker.readings, now_s=now)
        assert routed is not None
        address = routed.choice.addresses[0]
        placement = picker.router.forward(str(request.number), self._service, address, routed, now_s=now)
        assert placement is not None
        self._tell(picker, placement, now)
        self.requests.append(request)
        self._owners[request.number] = (talk, picker)
        pod = next(pod for pod in self.pods if pod.address == address)
        self.placed[self.pods.index(pod)] += 1
        pod.submit(request)
        if address not in self._stepping:
            self._stepping.add(address)
            self._at(pod.step(now), "step", pod)

    def _step(self, pod: SimulatedPod, now: float) -> None:
        for request in pod.collect(now):
            talk, picker = self._owners.pop(request.number)
            picker.router.ended(str(request.number), now_s=now)
            self._tell(picker, PlacementEnd(id=str(request.number)), now)
            self._seen.update(request.answer)
            talk.left -= 1
            if not talk.left:
                self._answered(talk, request, now)
        if pod.is_idle:
            self._stepping.discard(pod.address)
        else:
            self._at(pod.step(now), "step", pod)

    def _tell(self, picker: PickerRun, event: PlacementEvent, now: float) -> None:
        for other in self._pickers:
            if other is not picker:
                self._at(now + HEARD_AFTER_S, "hear", (other, event))

    def _hear(self, picker: PickerRun, event: PlacementEvent, now: float) -> None:
        if isinstance(event, RequestPlacement):
            picker.router.forwarded_elsewhere("peer", event, now_s=now)
        elif isinstance(event, PlacementEnd):
            picker.router.ended_elsewhere("peer", event.id, now_s=now)

    def _answered(self, talk: TalkState, request: PodRequest, now: float) -> None:
        talk.said += request.answer
        talk.turn += 1
        turns = talk.conversation.turns
        if talk.turn < len(turns):
            self._at(now + turns[talk.turn].pause_s, "turn", talk)
        elif self._workload.clients and now < self._workload.seconds:
            self._at(now, "begin", None)

    def _read(self, now: float) -> None:
        """What the picker's loop does: states with the changes behind what each picker has."""
        addresses = [pod.address for pod in self.pods]
        for picker in self._pickers:
            followed = picker.router.followed(addresses)
            states = {pod.address: pod.state(f"instance-{pod.address}") for pod in self.pods}
            for log in self._logs:
                mine, state = followed[log.pod.address], states[log.pod.address]
                mine.take(state.instance, log.digest(mine.after))
            picker.router.take_readings(states, began_s=now)
            picker.readings = {address: StateReading(state=state, at_s=now) for address, state in states.items()}
        if self._owners or self._events:
            self._at(now + READING_PERIOD_S, "read", None)


def row(name: str, strategy: Strategy, pickers: int = 1, seed: int = 0) -> dict[str, Any]:
    """The figures of one workload under one strategy; raises KeyError for a name that there is not.

    seed: of arrivals and lengths, 0 for the workload's own.
    """
    workload = {w.name: w for w in WORKLOADS}[name]
    run = RoutingRun(replace(workload, seed=seed or workload.seed), ChoicePolicy(strategy=strategy), pickers=pickers)
    run.run()
    return {"workload": name, "by": strategy, "pickers": pickers, **figures(run)}


def figures(run: RoutingRun) -> dict[str, Any]:
    """Of a run. output_tokens_per_s: of answers that ended in the second half of the time in which conversations begin.
    reuse_fraction: of the prompt tokens that anything was computed of before. imbalance: requests of the
    pod with most of them by the mean."""
    ended, end = [request for request in run.requests if request.ended_at >= 0], run.seconds
    late = [request for request in ended if end / 2 <= request.ended_at < end]
    ttfts = sorted(request.first_at - request.at for request in ended)
    hits = sum(request.hits for request in ended)
    return {
        "requests": len(ended),
        "ttft_mean_s": round(sum(ttfts) / len(ttfts), 4),
        "ttft_p50_s": round(_percentile(ttfts, 0.5), 4),
        "ttft_p99_s": round(_percentile(ttfts, 0.99), 4),
        "request_mean_s": round(sum(request.ended_at - request.at for request in ended) / len(ended), 3),
        "output_tokens_per_s": round(sum(r.output for r in late) / (end - end / 2), 1),
        "reuse_fraction": round(hits / run.available_pieces, 4) if run.available_pieces else 1.0,
        "imbalance": round(max(run.placed) * len(run.placed) / sum(run.placed), 2),
    }


def _percentile(ranked: Sequence[float], fraction: float) -> float:
    return ranked[max(0, ceil(fraction * len(ranked)) - 1)]


def rows(asked: Iterable[tuple[str, Strategy, int]], *, processes: int = 1, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Rows in the order in which they are asked for."""
    wanted = list(asked)
    if processes == 1:
        yield from (row(*each, seed) for each in wanted)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_row, [(*each, seed) for each in wanted])


def _row(asked: tuple[str, Strategy, int, int]) -> dict[str, Any]:
    return row(*asked)
