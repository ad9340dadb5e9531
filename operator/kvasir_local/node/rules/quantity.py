"""Kubernetes quantities in a divisor, for the downward API."""

from decimal import ROUND_CEILING, Decimal

from kvasir_api.quantity import parse


def divided(quantity: str | int, divisor: str | int) -> str:
    """The quantity counted in divisors, rounded up to a whole number, as the downward API gives it.

    A divisor of 0 means 1.
    """
    unit = parse(divisor) or Decimal(1)
    return str(int((parse(quantity) / unit).to_integral_value(rounding=ROUND_CEILING)))
