"""Which accelerator class a service gets: the first of its list that is there and fits, or the cheapest that fits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.inspection import Prediction
from kvasir_api.quantity import parse
from kvasir_api.roofline import Roofline
from kvasir_api.service import Accelerator
from kvasir_api.status import ClassForecast, two_digits
from kvasir_operator.desired import fallback, fit
from kvasir_operator.desired.capability import MissingCapability, missing_capability
from kvasir_operator.observed.service import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassChoice:
    """name: the class, empty when none was asked for or none fits. why: a sentence; empty when none was asked for.

    too_small: a class was passed over since the model does not fit it. lacking: path of the field that asked for more
    than a class that was passed over can do. considered: names in order of preference.
    """

    name: str = ""
    why: str = ""
    too_small: bool = False
    lacking: str = ""
    considered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsuitableClasses:
    """Classes that cannot serve the model, by name. too_small: with the numbers. lacking: with what they cannot do."""

    too_small: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, MissingCapability] = field(default_factory=dict)

    def why(self, name: str) -> str:
        """A sentence for a class that is barred, empty for any other."""
        if name in self.lacking:
            return f"{name}: {self.lacking[name].why}"
        return f"{name} is too small: {self.too_small[name]}" if name in self.too_small else ""

    def told(self, found: ClassChoice, passed: Sequence[str]) -> ClassChoice:
        """The choice with what it means that these classes, which are barred, were passed over."""
        fields = [self.lacking[name].field for name in passed if name in self.lacking]
        return replace(found, too_small=len(fields) < len(passed), lacking=fields[0] if fields else "")


def chosen(seen: Observed) -> AcceleratorClassSpec | None:
    """What the administrator says of the service's class; None without one."""
    return seen.classes.get(choice(seen).name)


def choice(seen: Observed) -> ClassChoice:
    """The class of a service, given what is known of its model, and which classes found no node for it."""
    wished, full = seen.spec.resources.accelerator, fallback.passed(seen)
    barred = UnsuitableClasses(too_small=fit.too_small(seen), lacking=_lacking(seen))
    first = choose(wished, seen.classes, barred)
    if not full:
        return first
    rest = choose(wished, {name: spec for name, spec in seen.classes.items() if name not in full}, barred)
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


def speed(seen: Observed) -> tuple[Roofline | None, int]:
    """How fast replicas could decode on the class that the service gets, None where that is not known, and the share of
    it in percent below which they are too slow."""
    found = chosen(seen)
    return (None, 0) if found is None else (fit.speed_on(seen, found), found.compute.degraded_below_percent)


def forecasts(seen: Observed) -> tuple[ClassForecast, ...]:
    """What one replica would hold, and how fast it could be, on each class that the service may get."""
    found = [(name, fit.on_class(seen, seen.classes[name])) for name in choice(seen).considered if name in seen.classes]
    return tuple(
        ClassForecast(
            name=name,
            fit=judged.verdict,
            kv_tokens=judged.kv_tokens if judged.known else None,
            requests=judged.requests if judged.known else None,
            stream_tokens_per_second=two_digits(judged.stream_tokens_per_s) or None,
            batch_tokens_per_second=two_digits(judged.batch_tokens_per_s) or None,
        )
        for name, judged in found
        if judged is not None
    )


def _lacking(seen: Observed) -> dict[str, MissingCapability]:
    found = {name: missing_capability(seen, spec) for name, spec in seen.classes.items()}
    return {name: said for name, said in found.items() if said is not None}


def choose(
    asked: Accelerator, known: Mapping[str, AcceleratorClassSpec], barred: UnsuitableClasses | None = None
) -> ClassChoice:
    """The class for a service. Nothing is asked for by a count of 0, or with neither classes nor minMemory."""
    if not asked.count or not (asked.classes or asked.min_memory):
        return ClassChoice()
    least = parse(asked.min_memory) if asked.min_memory else Decimal(0)
    bars = barred or UnsuitableClasses()
    if asked.classes:
        return _listed(asked.classes, known, least, bars)
    fitting = sorted(
        (spec.price_per_hour, name)
        for name, spec in known.items()
        if parse(spec.memory) >= least and (asked.spot or not spec.spot)
    )
    considered = tuple(name for _, name in fitting)
    if not fitting:
        kinds = "" if asked.spot else " that is not spot"
        return ClassChoice(why=f"no AcceleratorClass{kinds} has {asked.min_memory} of memory ({_names(known)})")
    passed: list[str] = []
    for price, name in fitting:
        if not (bar := bars.why(name)):
            why = f"the cheapest with {asked.min_memory} of memory, {price} per hour"
            found = ClassChoice(name=name, why="; ".join([*passed, why]), considered=considered)
            return bars.told(found, considered[: len(passed)])
        passed.append(bar)
    return bars.told(ClassChoice(why="; ".join(passed), considered=considered), considered)


def _listed(
    classes: Iterable[str], known: Mapping[str, AcceleratorClassSpec], least: Decimal, bars: UnsuitableClasses
) -> ClassChoice:
    passed: list[str] = []
    barred: list[str] = []
    considered = tuple(classes)
    for name in considered:
        spec = known.get(name)
        if spec is None:
            passed.append(f"{name} does not exist")
        elif parse(spec.memory) < least:
            passed.append(f"{name} has only {spec.memory}")
        elif bar := bars.why(name):
            barred.append(name)
            passed.append(bar)
        else:
            why = "; ".join([*passed, f"{name} is there"])
            return bars.told(ClassChoice(name=name, why=why, considered=considered), barred)
    return bars.told(ClassChoice(why="; ".join(passed), considered=considered), barred)


def _names(known: Mapping[str, AcceleratorClassSpec]) -> str:
    return ", ".join(f"{name}: {spec.memory}" for name, spec in sorted(known.items())) or "there is none at all"
