"""Runs scenarios under rules. The same arguments give the same result, whatever the machine has else to do."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, Final

from kvasir_operator.simulation.figures import figures
from kvasir_operator.simulation.fleet import Fleet, FleetRun, ScalingRule
from kvasir_operator.simulation.kvasir_rule import KvasirRule
from kvasir_operator.simulation.peer_rules import PEERS, peers
from kvasir_operator.simulation.reference_rules import REFERENCES, references
from kvasir_operator.simulation.scenarios import FIGURES, Scenario, named, scenarios
from kvasir_operator.simulation.traffic import requests

RULES: Final = ("kvasir", *PEERS, *REFERENCES)
"""All names of rules. References run where they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRow:
    """One scenario under one rule. figures: those that the scenario has a goal for; measured: all. created: replicas by
    time, one value per slice."""

    scenario: str
    by: str
    figures: dict[str, Any]
    measured: dict[str, Any]
    created: tuple[int, ...]

    @property
    def line(self) -> dict[str, Any]:
        """What `kvasir simulate --json` prints."""
        return {"scenario": self.scenario, "by": self.by, **self.figures}


def rules_for(scenario: Scenario) -> list[ScalingRule]:
    """Kvasir's and all peers', fresh."""
    return [
        KvasirRule(spec=scenario.autoscaling),
        *peers(max(1.0, round(0.85 * scenario.capacity.batch)), least=scenario.autoscaling.min_replicas),
    ]


def run(scenario: Scenario, rule: ScalingRule) -> FleetRun:
    """One scenario under one rule."""
    each = scenario.capacity.requests_per_s
    coming = requests(
        lambda t: scenario.load(t) * each,
        scenario.mix,
        seconds=scenario.seconds,
        most_rate=scenario.most_load * each,
        seed=scenario.seed,
    )
    return Fleet(scenario.profile, rule, replicas=scenario.start, most=scenario.most, hold=scenario.hold).run(
        coming, seconds=scenario.seconds
    )


def row(name: str, by: str, seed: int = 0) -> SimulationRow:
    """One scenario under one rule, by their names; raises KeyError for a name that there is not. seed: of arrivals and
    lengths, 0 for the scenario's own."""
    scenario = named()[name]
    scenario = replace(scenario, seed=seed or scenario.seed)
    rule = {r.name: r for r in [*rules_for(scenario), *references(scenario)]}[by]
    done = run(scenario, rule)
    measured = figures(replace(scenario, goals=FIGURES), done)
    return SimulationRow(
        scenario=name,
        by=by,
        figures={figure: value for figure, value in measured.items() if figure in scenario.goals},
        measured=measured,
        created=tuple(done.created),
    )


def rows(asked: Iterable[tuple[str, str]], *, processes: int = 1, seed: int = 0) -> Iterator[SimulationRow]:
    """Rows in the order in which they are asked for. seed: as of row()."""
    pairs = list(asked)
    if processes == 1:
        yield from (row(*pair, seed) for pair in pairs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(row, [name for name, _ in pairs], [by for _, by in pairs], [seed] * len(pairs))


def pairs(names: Sequence[str] = (), by: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Scenarios with rules; those that run together, and Kvasir's rule and its peers', where they are not narrowed."""
    asked = names or [scenario.name for scenario in scenarios()]
    return [
        (name, rule) for name in named() if name in asked for rule in RULES if rule in (by or RULES[: -len(REFERENCES)])
    ]
