"""Which accelerator class a service gets: the first of its list that is there and fits, or the cheapest that fits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.inspection import Prediction
from kvasir_api.quantity import parse
from kvasir_api.service import Accelerator
from kvasir_api.status import ClassForecast
from kvasir_operator.desired import fallback, fit
from kvasir_operator.observed.world import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """name: the class, empty when none was asked for or none fits. why: a sentence; empty when none was asked for.

    too_small: a class was passed over since the model does not fit it. considered: names in order of preference.
    """

    name: str = ""
    why: str = ""
    too_small: bool = False
    considered: tuple[str, ...] = ()


def chosen(seen: Observed) -> AcceleratorClassSpec | None:
    """What the administrator says of the service's class; None without one."""
    return seen.classes.get(choice(seen).name)


def choice(seen: Observed) -> Choice:
    """The class of a service, given what is known of its model, and which classes found no node for it."""
    wished, small, full = seen.spec.resources.accelerator, fit.too_small(seen), fallback.passed(seen)
    first = choose(wished, seen.classes, small)
    if not full:
        return first
    rest = choose(wished, {name: spec for name, spec in seen.classes.items() if name not in full}, small)
    if not rest.name:
        return first  # all were tried: it begins anew
    return replace(rest, why=f"{', '.join(full)} found no node; {rest.why}", considered=first.considered)


def forecast(seen: Observed) -> Prediction | None:
    """What one replica would hold where the service gets; None where nobody looked."""
    if not fit.on_accelerator(seen.spec):
        return fit.on_processor(seen) or fit.unknown(seen)
    found = choice(seen)
    name = found.name or next((name for name in found.considered if name in seen.classes), "")
    known = seen.classes.get(name)
    if known is not None:
        return fit.on_class(seen, known) or fit.unknown(seen)
    if fit.facts(seen) is not None:
        return Prediction(verdict="Unknown", message="no AcceleratorClass says how much memory a device has")
    return fit.unknown(seen)


def forecasts(seen: Observed) -> tuple[ClassForecast, ...]:
    """What one replica would hold on each class that the service may get."""
    found = [(name, fit.on_class(seen, seen.classes[name])) for name in choice(seen).considered if name in seen.classes]
    return tuple(
        ClassForecast(name=name, fit=judged.verdict, kv_tokens=judged.kv_tokens, requests=judged.requests)
        for name, judged in found
        if judged is not None
    )


def choose(
    asked: Accelerator, known: Mapping[str, AcceleratorClassSpec], too_small: Mapping[str, str] | None = None
) -> Choice:
    """The class for a service. Nothing is asked for by a count of 0, or with neither classes nor minMemory.

    too_small: classes that the model does not fit, with the numbers.
    """
    if not asked.count or not (asked.classes or asked.min_memory):
        return Choice()
    least = parse(asked.min_memory) if asked.min_memory else Decimal(0)
    if asked.classes:
        return _listed(asked.classes, known, least, too_small or {})
    fitting = sorted(
        (spec.price_per_hour, name)
        for name, spec in known.items()
        if parse(spec.memory) >= least and (asked.spot or not spec.spot)
    )
    considered = tuple(name for _, name in fitting)
    if not fitting:
        kinds = "" if asked.spot else " that is not spot"
        return Choice(why=f"no AcceleratorClass{kinds} has {asked.min_memory} of memory ({_names(known)})")
    passed = []
    for price, name in fitting:
        if too_small and name in too_small:
            passed.append(f"{name} is too small: {too_small[name]}")
            continue
        why = f"the cheapest with {asked.min_memory} of memory, {price} per hour"
        return Choice(name=name, why="; ".join([*passed, why]), too_small=bool(passed), considered=considered)
    return Choice(why="; ".join(passed), too_small=True, considered=considered)


def _listed(
    classes: Iterable[str], known: Mapping[str, AcceleratorClassSpec], least: Decimal, too_small: Mapping[str, str]
) -> Choice:
    passed, small = [], False
    considered = tuple(classes)
    for name in considered:
        spec = known.get(name)
        if spec is None:
            passed.append(f"{name} does not exist")
        elif parse(spec.memory) < least:
            passed.append(f"{name} has only {spec.memory}")
        elif name in too_small:
            small = True
            passed.append(f"{name} is too small: {too_small[name]}")
        else:
            why = "; ".join([*passed, f"{name} is there"])
            return Choice(name=name, why=why, too_small=small, considered=considered)
    return Choice(why="; ".join(passed), too_small=small, considered=considered)


def _names(known: Mapping[str, AcceleratorClassSpec]) -> str:
    return ", ".join(f"{name}: {spec.memory}" for name, spec in sorted(known.items())) or "there is none at all"
