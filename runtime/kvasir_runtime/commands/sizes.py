"""Sizes of memory as people write them. Pure."""

import re
from typing import Any, Final

import click

_UNITS: Final = {
    "": 1,
    **{f"{p}i": 1024**n for n, p in enumerate("KMGTP", 1)},
    **{p: 1000**n for n, p in enumerate("kMGTP", 1)},
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGTP]?i?)B?")


def num_bytes(text: str) -> int:
    """Bytes of 24Gi, 24GiB, 80GB, 80G or a plain number. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    unit = match[2] if match else ""
    unit = "k" if unit == "K" else "Ki" if unit == "ki" else unit
    if match is None or unit not in _UNITS or not (size := int(float(match[1]) * _UNITS[unit])):
        raise ValueError(f"{text!r} is not a size such as 24Gi or 80GB")
    return size


class Size(click.ParamType[int]):
    """A size on the command line, bytes in Python."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        if isinstance(value, int):
            return value
        try:
            return num_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
