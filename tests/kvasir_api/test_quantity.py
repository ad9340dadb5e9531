"""Kubernetes quantities as numbers."""

from decimal import Decimal

import pytest

from kvasir_api.quantity import parse


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80Gi", 80 * 2**30),
        ("80G", 80 * 10**9),
        ("1.5Ki", 1536),
        ("7", 7),
        ("250m", Decimal("0.25")),
        ("1k", 1000),
    ],
)
def test_parse(text: str, number: Decimal) -> None:
    assert parse(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1Zi", "one", "--1"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse(text)
