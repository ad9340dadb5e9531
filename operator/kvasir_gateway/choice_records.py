"""Why requests went where they did: what their choices were made from, for the last of them.

A record has the arguments of `choose` and no text of a prompt. Its explanation makes the same choice again, so that a
replay of a record gives the same bytes. Pure; the picker adds records, its state port and `kvasir gateway replay` read.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import structs

from kvasir_gateway.choose import Candidate, ChoicePolicy, EndpointChoice, RequestSize, choose
from kvasir_gateway.handover import Handover

MOST_CANDIDATES: Final = 32_768
"""Of all records together: about 15 MB."""
LONGEST_ID: Final = 128
NEVER_S: Final = -1e18
"""In place of minus infinity, which JSON does not have."""
HEAD: Final = ("endpoint", "cost", "wait", "compute", "stall", "decode", "later", "silence", "uncached", "requests")


class ChoiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """at: UTC. holder: the address that holds what the request continues, which decides; else candidates and what
    `choose` takes besides. handed: where the prompt may be computed, None for where the answer is alone."""

    request_id: str
    service: str
    at: str
    holder: str = ""
    candidates: tuple[Candidate, ...] = ()
    request: RequestSize = RequestSize(prompt_tokens=0)
    policy: ChoicePolicy = ChoicePolicy()
    seed: int = 0
    handed: Handover | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceInputs:
    """What `choose` was given, and where the prompt may be computed, None for where the answer is alone."""

    candidates: Sequence[Candidate] = ()
    request: RequestSize = field(default_factory=lambda: RequestSize(prompt_tokens=0))
    seed: int = 0
    handed: Handover | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    service: str
    at_s: float
    holder: str
    inputs: ChoiceInputs

    @property
    def size(self) -> int:
        return 1 + len(self.inputs.candidates)


class ChoiceRecords:
    """The last choices by request id; the oldest are forgotten."""

    def __init__(self, policy: ChoicePolicy, *, most_candidates: int = MOST_CANDIDATES) -> None:
        self._policy, self._most = policy, most_candidates
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0

    def add(self, request_id: str, service: str, inputs: ChoiceInputs, *, at_s: float, holder: str = "") -> None:
        """A choice was made. at_s: since the epoch. Of two requests with one id the later one is kept."""
        if not 0 < len(request_id) <= LONGEST_ID:
            return
        if request_id in self._entries:
            self._size -= self._entries.pop(request_id).size
        entry = _Entry(service=service, at_s=at_s, holder=holder, inputs=inputs)
        self._entries[request_id] = entry
        self._size += entry.size
        while self._size > self._most:
            self._size -= self._entries.popitem(last=False)[1].size

    def find(self, request_id: str) -> ChoiceRecord | None:
        """None for a request that was forgotten, or never chosen for."""
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        return ChoiceRecord(
            request_id=request_id,
            service=entry.service,
            at=datetime.fromtimestamp(entry.at_s, UTC).isoformat(timespec="milliseconds"),
            holder=entry.holder,
            candidates=tuple(
                structs.replace(c, sent_s=max(NEVER_S, c.sent_s), cold_s=max(NEVER_S, c.cold_s))
                for c in entry.inputs.candidates
            ),
            request=entry.inputs.request,
            policy=self._policy,
            seed=entry.inputs.seed,
            handed=entry.inputs.handed,
        )


def encode(record: ChoiceRecord) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(record)


def decode(line: bytes) -> ChoiceRecord:
    """Raises msgspec.MsgspecError for what is no record."""
    return msgspec.json.decode(line, type=ChoiceRecord)


def explained(record: ChoiceRecord) -> str:
    """Which endpoint, why, and what the others would have cost; a line for each."""
    about = f"request {record.request_id} of service {record.service} at {record.at}"
    if record.holder:
        return f"{about}: {record.holder}, which holds what it continues\n"
    if not record.candidates:
        return f"{about}: no endpoint could be chosen\n"
    choice = choose(record.candidates, record.request, policy=record.policy, seed=record.seed)
    size = f"  prompt of about {record.request.prompt_tokens:.0f} tokens"
    if choice.costs:
        size += f", answer of about {record.request.output_tokens:.0f}; costs in seconds"
    rows = [HEAD, *_rows(record, choice)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    first = f"{about}: {choice.addresses[0]}, {_reason(choice)} of {len(record.candidates)}{_room(choice)}"
    return "\n".join([first, size, *_prompt(record.handed), *table]) + "\n"


def _reason(choice: EndpointChoice) -> str:
    return {"copy": "a copy of a hot prefix", "only": "the only one", "turn": "in turn"}.get(
        choice.reason, choice.reason.replace("_", " ")
    )


def _prompt(handed: Handover | None) -> list[str]:
    """Where the prompt is computed and what that costs, nothing where it could only be where the answer is."""
    if handed is None:
        return []
    there = f"{handed.there_s:.4f} s there and {handed.move_s:.4f} s to move it, in place of {handed.stay_s:.4f} s"
    done = f"computed by {handed.address}" if handed.pays else f"stays; at {handed.address} it would be computed"
    late = f", {handed.late_s:.4f} s later than it is waited for" if handed.late_s else ""
    return [f"  prompt {done}, about {handed.tokens:.0f} tokens: {there}{late}"]


def _room(choice: EndpointChoice) -> str:
    """That queues are full, empty where none is."""
    if choice.is_saturated:
        return ", all of them full"
    return f", {len(choice.full)} of them full" if choice.full else ""


def _rows(record: ChoiceRecord, choice: EndpointChoice) -> Iterable[tuple[str, ...]]:
    """Endpoints in the order of preference, then the others."""
    costs = {cost.address: cost for cost in choice.costs}
    by_address = {candidate.address: candidate for candidate in record.candidates}
    for address in dict.fromkeys([*choice.addresses, *costs, *by_address]):
        candidate, cost = by_address[address], costs.get(address)
        if cost is None:
            why = "no reading" if candidate.load is None else "full" if address in choice.full else "-"
            yield address, why, *["-"] * (len(HEAD) - 3), str(candidate.requests)
            continue
        terms = cost.total_s, cost.wait_s, cost.compute_s, cost.stall_s, cost.decode_s, cost.later_s, cost.silence_s
        yield address, *(f"{term:.4f}" for term in terms), f"{cost.uncached_tokens:.0f}", str(candidate.requests)
