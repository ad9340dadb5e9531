"""What a service costs, and which AcceleratorClass decodes its tokens for the least money, by forecast.

Called when status is composed and by the loop, which exposes both as metrics. Prices are in the unit of pricePerHour.
"""

from collections.abc import Mapping

from kvasir_operator.status.inputs import StatusInputs

SECONDS_PER_HOUR = 3600


def price_per_hour(found: StatusInputs) -> Mapping[str, float]:
    """Price of the replicas that have a node, by their class; empty without a class that has a price."""
    placed = found.resolved.placement
    if placed.accelerator is None or not placed.accelerator.price_per_hour:
        return {}
    paid = sum(r.live and r.assigned for r in found.seen.replicas)
    devices = found.seen.spec.resources.accelerator.count
    return {placed.choice.name: float(paid * devices * placed.accelerator.price_per_hour)}


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
