"""Recorded readings: one tick of one service per line of JSON, and the decisions that follow from them.

Written by `loop/reading_log.py`, read by `kvasir replay`. Lines may be written by hand: only `at` and the pods' `name`
and `state` are needed. The format is in docs/autoscaling.md.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from pydantic import ValidationError

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.state import PrefixDigest, RuntimeState, ServiceDemand
from kvasir_api.status import MOST_REPLICAS
from kvasir_operator.scaling.capacity import UNKNOWN, ReplicaCapacity
from kvasir_operator.scaling.decide import ScalingState
from kvasir_operator.scaling.plausibility import unlikely
from kvasir_operator.scaling.tick import TickInputs, as_json, tick
from kvasir_operator.scaling.window import EMPTY, LoadWindow, ScaledReplica

DEFAULT_SERVICE: Final = "default/service"
LAST_WALL: Final = 1e11
"""Epoch seconds, in the year 5138: calendars end a little later."""
Replicas = Annotated[int, msgspec.Meta(ge=0, le=MOST_REPLICAS)]


class RecordedPod(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """A pod of a tick; see ScaledReplica. uid: its name where there is none. state: absent when it never answered."""

    name: str
    uid: str = ""
    serving: bool = True
    fresh: bool = True
    current: bool = True
    prefill: bool = False
    state: RuntimeState | None = None


class RecordedTick(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """A line. spec: spec.autoscaling, null without it; by_hand: spec.replicas. wanted, since: before the tick, needed
    for the first one of a service; a later line without them goes on from the one before. begins: the operator was
    started, and remembers nothing of the lines before. changes: how many it remembers. The rest: see TickInputs."""

    at: float
    service: str = DEFAULT_SERVICE
    uid: str = ""
    wall: Annotated[float, msgspec.Meta(ge=0, le=LAST_WALL)] = 0.0
    spec: dict[str, Any] | None = None
    autoscaled: bool = True
    by_hand: Replicas = 1
    begins: bool = False
    wanted: Replicas | None = None
    changes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    since: float | None = None
    pods: tuple[RecordedPod, ...] = ()
    gateways: tuple[ServiceDemand, ...] = ()
    missing_gateways: tuple[str, ...] = ()
    unplaced_s: float = 0.0
    cold_starts_s: tuple[float, ...] = ()
    expected: ReplicaCapacity = UNKNOWN


class InvalidRecordingError(ValueError):
    """A line that cannot be read; the message begins with its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMemory:
    """What is remembered of a service between two lines. uid: another one is another service of the same name."""

    uid: str
    window: LoadWindow
    state: ScalingState


def encoded(
    service: str,
    uid: str,
    spec: Autoscaling | None,
    state: ScalingState,
    inputs: TickInputs,
    *,
    by_hand: int,
    begins: bool = False,
) -> bytes:
    """A line, with its end. begins: nothing of the service is remembered yet. What the autoscaler does not read of a
    pod is left out."""
    pods = tuple(
        RecordedPod(
            **_flags(pod),
            state=msgspec.structs.replace(pod.reading, prefixes=PrefixDigest()) if pod.reading else None,
        )
        for pod in inputs.pods
    )
    line = RecordedTick(
        at=inputs.at,
        service=service,
        uid=uid,
        wall=inputs.wall,
        spec=spec.model_dump(mode="json", by_alias=True, exclude_defaults=True) if spec else None,
        autoscaled=spec is not None,
        by_hand=by_hand,
        begins=begins,
        wanted=state.wanted,
        changes=len(state.changes),
        since=state.since,
        pods=pods,
        gateways=inputs.gateways,
        missing_gateways=inputs.missing_gateways,
        unplaced_s=inputs.unplaced_s,
        cold_starts_s=inputs.cold_starts_s,
        expected=inputs.expected,
    )
    return msgspec.json.encode(line) + b"\n"


def decision_line(document: dict[str, object]) -> bytes:
    """A decision as one line of JSON, with its end."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def replayed(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The decision of each line, as the operator took it. Raises InvalidRecordingError at a line that is none."""
    memory: dict[str, ReplayMemory] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        line, spec = _parsed(number, text)
        known = memory.get(line.service)
        if known is None or line.begins or (line.uid and line.uid != known.uid):
            since = line.at if line.since is None else line.since
            wanted = line.by_hand if line.wanted is None else line.wanted
            known = ReplayMemory(uid=line.uid, window=EMPTY, state=ScalingState(wanted=wanted, since=since))
        if known.window.last is not None and line.at <= known.window.last.at:
            raise InvalidRecordingError(f"line {number}: at {line.at:g} is not after {known.window.last.at:g}")
        state = known.state if line.wanted is None else known.state._replace(wanted=line.wanted)
        if line.changes == 0:  # they are too old, or a mode was left in which another one set the count
            state = state._replace(changes=())
        result = tick(spec, known.window, state, _inputs(line), by_hand=line.by_hand)
        memory[line.service] = ReplayMemory(uid=known.uid, window=result.window, state=result.state)
        if result.decision is not None:
            yield decision_line(as_json(line.service, line.at, result.decision))


def _parsed(number: int, text: bytes) -> tuple[RecordedTick, Autoscaling | None]:
    try:
        line = msgspec.json.decode(text, type=RecordedTick)
        spec = Autoscaling.model_validate(line.spec or {}) if line.autoscaled else None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValidationError) as error:
        raise InvalidRecordingError(f"line {number}: {error}") from error
    except RecursionError as error:
        raise InvalidRecordingError(f"line {number}: its values are nested too deep") from error
    if wrong := _mistake(line, spec):
        raise InvalidRecordingError(f"line {number}: {wrong}")
    return line, spec


def _mistake(line: RecordedTick, spec: Autoscaling | None) -> str:
    """What is wrong in a line that can be read, empty for nothing: what a reader could take for another decision."""
    if spec is not None and line.spec is not None:
        known = {field.alias or name for name, field in Autoscaling.model_fields.items()}
        if unknown := sorted(line.spec.keys() - known):
            return f"spec.{unknown[0]} is no field of spec.autoscaling"
    if wrong := unlikely(line.expected):
        return f"expected: {wrong}"
    times = Counter(pod.uid or pod.name for pod in line.pods)
    return next((f"pod {pod} is there {count} times" for pod, count in times.items() if count > 1), "")


def _flags(pod: RecordedPod | ScaledReplica) -> dict[str, Any]:
    return {name: getattr(pod, name) for name in ("name", "uid", "serving", "fresh", "current", "prefill")}


def _inputs(line: RecordedTick) -> TickInputs:
    pods = tuple(
        ScaledReplica(
            **_flags(pod) | {"uid": pod.uid or pod.name, "fresh": pod.fresh and pod.state is not None},
            reading=pod.state,
        )
        for pod in line.pods
    )
    return TickInputs(
        at=line.at,
        wall=line.wall,
        pods=pods,
        gateways=line.gateways,
        missing_gateways=line.missing_gateways,
        unplaced_s=line.unplaced_s,
        cold_starts_s=line.cold_starts_s,
        expected=line.expected,
    )
