"""The options of an engine that a command starts for itself, as `kvasir serve` has them. Used by generate and chat."""

from collections.abc import Mapping
from typing import Any, Final

import click

from kvasir_api.option_parser import click_options, parse
from kvasir_api.options import ServeOptions

TAKEN: Final = frozenset(
    {
        "device",
        "dtype",
        "quantization",
        "max_model_len",
        "kv_cache_dtype",
        "kv_cache_tokens",
        "memory_percent",
        "generation_config",
        "hf_overrides",
        "revision",
        "chat_template",
    }
)


def options() -> list[click.Parameter]:
    """One click option for each, with help, default and bounds from the declaration."""
    return [*click_options(ServeOptions, skip=frozenset(ServeOptions.model_fields) - TAKEN)]


def taken(model: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those among a command's values, as LLM takes them. click.UsageError names every wrong one."""
    found = {name: value for name, value in values.items() if name in TAKEN}
    return parse(ServeOptions, {"model": model, **found}).model_dump(include=set(TAKEN))
