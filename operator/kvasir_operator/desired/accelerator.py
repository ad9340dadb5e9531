"""Which accelerator class a service gets: the first of its list that exists and fits, or the cheapest that fits.

`placement` is called once per reconcile, by `desired/resolve.py`; all others read its result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.inspection import ModelFacts, Prediction
from kvasir_api.quantity import parse
from kvasir_api.service import Accelerator
from kvasir_api.status import ClassForecast, two_digits
from kvasir_operator.desired import fallback, fit
from kvasir_operator.desired.capability import MissingCapability, missing_capability
from kvasir_operator.observed.service import Observed
from kvasir_operator.stages import ClassChoice, Placement


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

    def with_reasons(self, found: ClassChoice, passed: Sequence[str]) -> ClassChoice:
        """The choice with what it means that these classes, which are barred, were passed over."""
        fields = [self.lacking[name].field for name in passed if name in self.lacking]
        return replace(found, too_small=len(fields) < len(passed), lacking=fields[0] if fields else "")


def placement(seen: Observed, hash_: str = "") -> Placement:
    """The class, forecasts and roofline of a service, given what is known of its model and of classes without nodes.

    hash_: of the pods of the spec as it was written, where seen has a reduced one.
    """
    hash_ = hash_ or fallback.pod_hash(seen.spec)
    unavailable, facts = fallback.unavailable(seen, hash_), fit.facts(seen)
    choice = _choice(seen, facts, unavailable, hash_)
    chosen = seen.classes.get(choice.name)
    judged = {}
    if facts is not None:
        known = [name for name in choice.considered if name in seen.classes]
        judged = {name: fit.on_class(facts, seen.spec.runtime, seen.classes[name]) for name in known}
    return Placement(
        choice=choice,
        accelerator=chosen,
        forecast=_forecast(seen, facts, choice, judged),
        forecasts=tuple(_class_forecast(name, prediction) for name, prediction in judged.items()),
        roofline=None if chosen is None or facts is None else fit.speed_on(facts, seen.spec.runtime, chosen),
        unavailable=unavailable,
        pod_hash=hash_,
    )


def _choice(seen: Observed, facts: ModelFacts | None, unavailable: tuple[str, ...], pod_hash: str) -> ClassChoice:
    asked, runtime = seen.spec.resources.accelerator, seen.spec.runtime
    lacking = {name: missing_capability(runtime, facts, spec) for name, spec in seen.classes.items()}
    unsuitable = UnsuitableClasses(
        too_small=fit.too_small(facts, runtime, seen.classes) if facts is not None else {},
        lacking={name: lack for name, lack in lacking.items() if lack is not None},
    )
    first = choose(asked, seen.classes, unsuitable)
    if kept := _kept(seen, first, unsuitable, unavailable, pod_hash):
        return kept
    if not unavailable:
        return first
    rest = choose(asked, {name: spec for name, spec in seen.classes.items() if name not in unavailable}, unsuitable)
    if not rest.name:
        return first  # all were tried: the list starts again
    return replace(rest, why=f"{', '.join(unavailable)} found no node; {rest.why}", considered=first.considered)


def _kept(
    seen: Observed, first: ClassChoice, unsuitable: UnsuitableClasses, unavailable: tuple[str, ...], pod_hash: str
) -> ClassChoice | None:
    """The class that replicas have, while it suits them and another one would only be better; None otherwise."""
    before, name = seen.status.rollout, seen.status.rollout.accelerator_class
    # A status of an operator that wrote no hash is about these pods, as far as is known.
    same = before.pod_hash in ("", pod_hash)
    running = any(r.live and r.assigned for r in seen.replicas)
    if seen.spec.rollout.reclass == "Always" or not same or not running or name in ("", first.name, *unavailable):
        return None
    alone = {known: spec for known, spec in seen.classes.items() if known == name}
    if choose(seen.spec.resources.accelerator, alone, unsuitable).name != name:
        return None
    why = f"{name} has the replicas, and spec.rollout.reclass is OnChange; {first.name} would be taken for new pods"
    return replace(first, name=name, why=why, too_small=False, lacking="")


def _forecast(
    seen: Observed, facts: ModelFacts | None, choice: ClassChoice, judged: Mapping[str, Prediction]
) -> Prediction | None:
    """What one replica holds on the chosen class, or else on the first that was considered."""
    if facts is None:
        return fit.unknown(seen)
    if not fit.on_accelerator(seen.spec):
        return fit.on_processor(facts, seen.spec)
    name = choice.name or next(iter(judged), "")
    if name in judged:
        return judged[name]
    return Prediction(verdict="Unknown", message="no AcceleratorClass says how much memory a device has")


def _class_forecast(name: str, prediction: Prediction) -> ClassForecast:
    return ClassForecast(
        name=name,
        fit=prediction.verdict,
        kv_tokens=prediction.kv_tokens if prediction.known else None,
        requests=prediction.requests if prediction.known else None,
        stream_tokens_per_second=two_digits(prediction.stream_tokens_per_s) or None,
        batch_tokens_per_second=two_digits(prediction.batch_tokens_per_s) or None,
    )


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
            return bars.with_reasons(found, considered[: len(passed)])
        passed.append(bar)
    return bars.with_reasons(ClassChoice(why="; ".join(passed), considered=considered), considered)


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
            return bars.with_reasons(ClassChoice(name=name, why=why, considered=considered), barred)
    return bars.with_reasons(ClassChoice(why="; ".join(passed), considered=considered), barred)


def _names(known: Mapping[str, AcceleratorClassSpec]) -> str:
    return ", ".join(f"{name}: {spec.memory}" for name, spec in sorted(known.items())) or "there is none at all"
