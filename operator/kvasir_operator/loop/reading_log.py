"""Writes the autoscaler's readings and decisions as JSON lines, where the operator was started with
--record-readings."""

import logging
from pathlib import Path
from typing import Final

from kvasir_api.autoscaling import Autoscaling
from kvasir_kube.kinds import Key
from kvasir_operator.scaling import recording
from kvasir_operator.scaling.decide import ScalingState
from kvasir_operator.scaling.tick import TickInputs, TickResult, as_json

LOG: Final = logging.getLogger(__name__)
MOST_BYTES: Final = 64 * 1024 * 1024


class ReadingLog:
    """NAMESPACE.NAME.readings.jsonl and NAMESPACE.NAME.decisions.jsonl in a directory; nothing with an empty one.

    A service whose readings have reached MOST_BYTES is recorded no further, so that no disk fills. Where the disk takes
    no more, nothing is recorded from then on: a record with a gap would replay to other decisions.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory) if directory else None
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)

    def write(
        self,
        service: Key,
        uid: str,
        spec: Autoscaling | None,
        *,
        before: ScalingState,
        inputs: TickInputs,
        by_hand: int,
        begins: bool,
        result: TickResult,
    ) -> None:
        """One tick. before: the state at its beginning; begins: nothing was remembered before."""
        if self._directory is None:
            return
        reading = recording.encoded("/".join(service), uid, spec, before, inputs, by_hand=by_hand, begins=begins)
        decision = b""
        if result.decision is not None:
            decision = recording.decision_line(as_json("/".join(service), inputs.at, result.decision))
        try:
            _append(self._directory / ".".join(service), reading, decision)
        except OSError as error:
            LOG.error("readings are recorded no further: %s", error)  # noqa: TRY400  # the path says where
            self._directory = None


def _append(stem: Path, reading: bytes, decision: bytes) -> None:
    """A line to each file of a service, unless its readings are full."""
    readings = stem.with_name(f"{stem.name}.readings.jsonl")
    if readings.exists() and readings.stat().st_size >= MOST_BYTES:
        return
    with readings.open("ab") as file:
        file.write(reading)
    if decision:
        with stem.with_name(f"{stem.name}.decisions.jsonl").open("ab") as file:
            file.write(decision)
