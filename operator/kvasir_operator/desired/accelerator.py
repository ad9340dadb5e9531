"""Which accelerator class a service gets: the first of its list that is there and fits, or the cheapest that fits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.quantity import parse
from kvasir_api.service import Accelerator
from kvasir_operator.observed.world import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """name: the class, empty when none was asked for or none fits. why: a sentence; empty when none was asked for."""

    name: str = ""
    why: str = ""


def chosen(seen: Observed) -> AcceleratorClassSpec | None:
    """What the administrator says of the service's class; None without one."""
    return seen.classes.get(choose(seen.spec.resources.accelerator, seen.classes).name)


def choose(asked: Accelerator, known: Mapping[str, AcceleratorClassSpec]) -> Choice:
    """The class for a service. Nothing is asked for by a count of 0, or with neither classes nor minMemory."""
    if not asked.count or not (asked.classes or asked.min_memory):
        return Choice()
    least = parse(asked.min_memory) if asked.min_memory else Decimal(0)
    if asked.classes:
        return _listed(asked.classes, known, least)
    fitting = [
        (spec.price_per_hour, name)
        for name, spec in known.items()
        if parse(spec.memory) >= least and (asked.spot or not spec.spot)
    ]
    if not fitting:
        kinds = "" if asked.spot else " that is not spot"
        return Choice(why=f"no AcceleratorClass{kinds} has {asked.min_memory} of memory ({_names(known)})")
    price, name = min(fitting)
    return Choice(name=name, why=f"the cheapest with {asked.min_memory} of memory, {price} per hour")


def _listed(classes: Iterable[str], known: Mapping[str, AcceleratorClassSpec], least: Decimal) -> Choice:
    passed = []
    for name in classes:
        spec = known.get(name)
        if spec is None:
            passed.append(f"{name} does not exist")
        elif parse(spec.memory) < least:
            passed.append(f"{name} has only {spec.memory}")
        else:
            return Choice(name=name, why="; ".join([*passed, f"{name} is there"]))
    return Choice(why="; ".join(passed))


def _names(known: Mapping[str, AcceleratorClassSpec]) -> str:
    return ", ".join(f"{name}: {spec.memory}" for name, spec in sorted(known.items())) or "there is none at all"
