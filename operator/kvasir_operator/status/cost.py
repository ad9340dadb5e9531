"""What a service costs, and which AcceleratorClass decodes its tokens for the least money, by forecast.

Called when status is composed and by the loop, which exposes both as metrics. Prices are in the unit of pricePerHour.
"""

from collections import Counter
from collections.abc import Mapping

from kvasir_api.accelerator import pod_shape
from kvasir_operator.status.inputs import StatusInputs

SECONDS_PER_HOUR = 3600


def price_per_hour(found: StatusInputs) -> Mapping[str, float]:
    """Price of the replicas that have a node, by the class of their revision; empty where no class has a price."""
    prices: dict[str, float] = {}
    for revision, replicas in Counter(r.revision for r in found.seen.replicas if r.live and r.assigned).items():
        name, devices = _hardware(found, revision)
        spec = found.seen.classes.get(name)
        if spec is not None and spec.price_per_hour:
            prices[name] = prices.get(name, 0.0) + replicas * devices * spec.price_per_hour
    return prices


def _hardware(found: StatusInputs, revision: str) -> tuple[str, int]:
    """Class and devices of a replica of that revision. A revision has what its class makes of pods, and not the name:
    of several that make the same, and of one that has changed or gone since, the chosen class counts."""
    chosen, known = found.resolved.placement.choice.name, found.seen.revision(revision)
    if known is None:
        return chosen, found.seen.spec.resources.accelerator.count
    devices = int(known.inputs.get("resources", {}).get("accelerator", {}).get("count", 0))
    if "acceleratorClass" not in known.inputs:
        return "", devices
    shape = {name: value for name, value in known.inputs["acceleratorClass"].items() if name != "podPatches"}
    same = [name for name, spec in sorted(found.seen.classes.items()) if pod_shape(spec) == shape]
    return (chosen if chosen in same or not same else same[0]), devices


def tokens_per_price_unit(found: StatusInputs) -> Mapping[str, float]:
    """Tokens that a replica decodes at best for one unit, of classes that have a price, fit the model and decode a
    request alone within itlMilliseconds."""
    rules = found.seen.spec.autoscaling
    least_per_s = 1000 / rules.itl_milliseconds if rules is not None and rules.itl_milliseconds else 0.0
    devices = found.seen.spec.resources.accelerator.count
    tokens = {}
    for forecast in found.resolved.placement.forecasts:
        spec = found.seen.classes.get(forecast.name)
        price = devices * spec.price_per_hour if spec is not None else 0
        alone, full = forecast.stream_tokens_per_second or 0, forecast.batch_tokens_per_second or 0
        if price and full and forecast.fit == "Fits" and alone >= least_per_s:
            tokens[forecast.name] = full * SECONDS_PER_HOUR / price
    return tokens


def cheapest_class(found: StatusInputs) -> str:
    """The class with most tokens for one unit; of equal ones the first considered. Empty where none is known."""
    tokens = tokens_per_price_unit(found)
    return max(tokens, key=tokens.__getitem__, default="")
