"""The command-line options of an options model: its click options, and the model of the values that click read.

Called by every command whose options are declared in `options` or in a package's own options model.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from kvasir_api.flags import flag

Options = TypeVar("Options", bound=BaseModel)


class Fraction(click.ParamType[int]):
    """A number 0.01..0.99 on the command line, integer percent in the options."""

    name = "fraction"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Percent, rounded; the bounds are those of the declaration. ints are percent already."""
        if isinstance(value, int):
            return value
        try:
            return round(float(value) * 100)
        except (ValueError, OverflowError):  # inf overflows, nan is no integer
            self.fail(f"{value!r} is not a number between 0.01 and 0.99", param, ctx)


def click_options(model: type[BaseModel], *, skip: frozenset[str] = frozenset()) -> list[click.Option]:
    """One click option per field of an options model, with help, default, unit and bounds from the declaration."""
    return [
        _click_option(name, info, flag(name, model)) for name, info in model.model_fields.items() if name not in skip
    ]


def _click_option(name: str, info: FieldInfo, flag: str) -> click.Option:
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    unit = f" [{extra['x-unit']}]" if "x-unit" in extra and name != "memory_percent" else ""
    kwargs: dict[str, Any] = {
        "help": f"{info.description}{unit}",
        "default": info.default,
        "show_default": info.default not in ("", ()),
    }
    if "x-metavar" in extra:
        kwargs["metavar"] = extra["x-metavar"]
    if info.annotation is bool:
        return click.Option([f"{flag}/--no-{flag[2:]}", name], **kwargs)
    if name == "memory_percent":
        kwargs["default"] = info.default / 100
        return click.Option([flag, name], **{**kwargs, "type": Fraction()})
    kwargs.update(_click_type(info))
    return click.Option([flag, name], **kwargs)


def _click_type(info: FieldInfo) -> dict[str, Any]:
    annotation = info.annotation
    if choices := get_args(annotation) if get_origin(annotation) is not tuple else ():
        return {"type": click.Choice(choices)} if isinstance(choices[0], str) else {"type": click.Choice([*choices])}
    if get_origin(annotation) is tuple:
        return {"type": str, "multiple": True}
    if annotation in {int, float}:
        bounds = {key: getattr(m, key) for m in info.metadata for key in ("ge", "le") if hasattr(m, key)}
        numbers = click.IntRange if annotation is int else click.FloatRange
        return {"type": numbers(bounds.get("ge"), bounds.get("le"))}
    return {"type": str}


def parse(model: type[Options], values: Mapping[str, Any]) -> Options:
    """The options model of a command's values. click.UsageError names every wrong one."""
    try:
        return model(**values)
    except ValidationError as error:
        raise click.UsageError(describe(error)) from error


def describe(error: ValidationError) -> str:
    """One line for a person: each wrong option by its flag or field and what is wrong with it."""
    parts = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        parts.append(f"{where}: {item['msg']}" if where else item["msg"].removeprefix("Value error, "))
    return "; ".join(parts)
