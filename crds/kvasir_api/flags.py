"""Command-line flags of the options that `options` declares: their names, and those that reproduce given values."""

from pydantic import BaseModel

from kvasir_api.options import RuntimeOptions, ServeOptions


def flag(name: str, model: type[BaseModel] = ServeOptions) -> str:
    """The command-line flag of a field of an options model, for example --max-model-len."""
    extra = model.model_fields[name].json_schema_extra
    given = extra.get("x-flag") if isinstance(extra, dict) else None
    return f"--{given or name.replace('_', '-')}"


def arguments(options: RuntimeOptions) -> tuple[str, ...]:
    """Flags that reproduce options, only those that differ from their defaults, in the order of declaration."""
    args: list[str] = []
    for name, info in type(options).model_fields.items():
        value = getattr(options, name)
        if value == info.default or name == "model":
            continue
        args += _flag_values(name, value)
    return tuple(args)


def _flag_values(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [flag(name) if value else f"--no-{flag(name)[2:]}"]
    if isinstance(value, tuple):
        return [part for item in value for part in (flag(name), str(item))]
    if name == "memory_percent" and isinstance(value, int):
        return [flag(name), f"{value / 100:g}"]
    return [flag(name), str(value)]
