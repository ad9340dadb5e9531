"""`kvasir plan MODEL`: does it fit? From config.json alone, by the forecast that the runtime uses."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from kvasir_api import forecast, hf_config, inspection, names, weight_offload
from kvasir_api.command import click_options
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime import gguf, hub, source
from kvasir_runtime.commands import host_resources, sizes
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.server.banner import size

MAX_ARCHITECTURE = 128
MAX_WHY = 1000
TAKEN = frozenset(
    {"dtype", "quantization", "kv_cache_dtype", "max_model_len", "memory_percent", "max_batch_tokens", "hf_overrides"}
    | {"weights_host_bytes"}
)


class NoVerdict(click.ClickException):
    """The model cannot be judged."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """The forecast with what it was made for. fitting_context: tokens of the longest request that would fit."""

    model: str
    architecture: str
    supported: bool
    parameters: int
    active_parameters: int
    dtype: str
    quantization: str
    device: str
    memory_bytes: int
    memory_fraction: float
    shared: bool
    max_model_len: int
    max_sequences: int
    fit: forecast.MemoryFit

    @property
    def fitting_context(self) -> int:
        """0 when nothing is left after weights and activations."""
        return self.fit.longest_sequence


def fit_report(
    model: str,
    config: dict[str, Any],
    *,
    memory_bytes: int,
    device: host_resources.Device,
    options: RuntimeOptions,
    shared: bool = False,
) -> FitReport:
    """shared: no container limits the memory. Raises ValueError that names what is wrong with config.json."""
    from kvasir_runtime.models.registry import FAMILIES

    if options.weights_host_bytes and device == "cpu":
        raise ValueError(weight_offload.NOT_ON_CPU)
    shape = _shape(config)
    dtype = host_resources.dtype(options.dtype, shape.dtype, device)
    architecture = _architecture(config)
    longest = options.max_model_len or shape.max_positions
    return FitReport(
        model=model,
        architecture=architecture,
        supported=any(architecture in family.architectures for family in FAMILIES),
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        dtype=dtype,
        quantization=options.quantization,
        device=device,
        memory_bytes=memory_bytes,
        memory_fraction=options.memory_fraction,
        shared=shared,
        max_model_len=longest,
        max_sequences=options.max_sequences,
        fit=forecast.fit(
            shape,
            memory_bytes=memory_bytes,
            memory_fraction=options.memory_fraction,
            dtype=dtype,
            max_model_len=longest,
            max_batch_tokens=options.max_batch_tokens or forecast.BATCH_TOKENS[device],
            process_bytes=forecast.PROCESS_BYTES[device],
            kv_cache_dtype=options.kv_cache_dtype,
            quantization=options.quantization,
            weights_host_bytes=options.weights_host_bytes,
            cache_limit_bytes=_cache_limit(shape, memory_bytes, dtype, device, options) if shared else None,
        ),
    )


def _cache_limit(
    shape: forecast.ModelShape, memory_bytes: int, dtype: str, device: host_resources.Device, options: RuntimeOptions
) -> int:
    """The engine's cache on a shared machine: a modest part of memory, or the requested length."""
    cached = dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    chunk_tokens = options.max_batch_tokens or forecast.BATCH_TOKENS[device]
    requested = shape.sequence_tokens(options.max_model_len, chunk_tokens) if options.max_model_len else 0
    return max(forecast.shared_cache_bytes(memory_bytes), requested * shape.kv_bytes_per_token(cached))


def table(report: FitReport) -> str:
    """For a person: one line per number, then the verdict."""
    fit = report.fit
    support = "" if report.supported else ", NOT supported"
    active = f", {count(report.active_parameters)} active" if report.active_parameters < report.parameters else ""
    rows = [
        ("model", f"{report.model} ({report.architecture}{support}, {count(report.parameters)} parameters{active})"),
        ("memory", f"{size(report.memory_bytes)} on {report.device}, {_taken(report)}"),
        ("weights", f"{size(fit.weights_bytes)} in {report.dtype}{_and_bits(report.quantization)}{_on_host(fit)}"),
        ("process", f"{size(forecast.PROCESS_BYTES[report.device])}, and {size(fit.activation_bytes)} in a step"),
        ("KV cache", f"{fit.kv_tokens:,} tokens of {size(fit.kv_bytes_per_token)}{_windows(report)}"),
        (
            "concurrency",
            f"{fit.concurrency:.2f} requests of {report.max_model_len:,} tokens, {report.max_sequences} at most",
        ),
        ("verdict", verdict(report)),
    ]
    return "\n".join(f"{name:<13}{value}" for name, value in rows)


def _taken(report: FitReport) -> str:
    if report.shared:
        return "which others use too: a quarter of it for the KV cache, at most 8 GiB"
    return f"{report.memory_fraction:.0%} of it to be used"


def _windows(report: FitReport) -> str:
    """What a model with windows takes for the longest request, where that is less than its length."""
    taken = report.fit.sequence_tokens
    return f"; {report.max_model_len:,} tokens of one request take {taken:,}" if taken < report.max_model_len else ""


def _and_bits(quantization: str) -> str:
    return f" and {quantization}" if quantization in forecast.QUANTIZED_SIXTEENTHS else ""


def _on_host(fit: forecast.MemoryFit) -> str:
    """Weights that are copied to the device in every step, and how long that takes by the usual link."""
    if not fit.host_weights_bytes:
        return ""
    seconds = fit.host_weights_bytes / weight_offload.LINK_BYTES_PER_S
    return f"; {size(fit.host_weights_bytes)} on the host: a step takes at least {seconds:.2g} s at 25 GB/s"


def count(number: int) -> str:
    """Three digits with a unit, for example 8.03 billion."""
    return f"{number / 1e9:.3g} billion" if number >= 999_500_000 else f"{number / 1e6:.3g} million"


def verdict(report: FitReport) -> str:
    """One sentence."""
    if report.fit.verdict == "Fits":
        return "it fits"
    if report.fitting_context == 0:
        return f"too small: {report.fit.message}"
    return (
        f"too small for {report.max_model_len:,} tokens; it fits with --max-model-len {report.fitting_context}"
        " (`kvasir serve` without that option lowers it by itself)"
    )


def read_config(model: str, revision: str = "") -> dict[str, Any]:
    """config.json of a directory, of that file itself, of a GGUF file, or of a hub name (only this file is fetched).

    Raises ValueError with one line.
    """
    named = _on_hub(model, revision)
    if named is not None:
        if named.file:
            raise ValueError(f"{model} is on the hub, where the header of a GGUF file is not read; plan a copy of it")
        return _read_json(hub.config_file(named, ""))
    path = _local(model, revision)
    if gguf.is_gguf(path):
        return gguf_config(path)
    if path.is_dir():
        path /= "config.json"
    elif not path.is_file():
        raise ValueError(f"model directory {model} does not exist")
    return _read_json(path)


def _on_hub(model: str, revision: str) -> hub.HubName | None:
    """The name on the hub where the model is none on this machine, None where it is."""
    try:
        named = None if Path(model).expanduser().exists() else hub.parsed(model, revision)
    except ModelError as error:
        raise ValueError(str(error)) from error
    return named


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object")
    return config


def gguf_config(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file in the form of config.json. Raises ValueError with one line."""
    try:
        return gguf.config(gguf.read(path))
    except ModelError as error:
        raise ValueError(str(error)) from error


def _local(model: str, revision: str) -> Path:
    """A path, with the one GGUF file of a directory that holds nothing else for the directory."""
    path = Path(model).expanduser()
    try:
        return source.resolve(model, revision) if path.exists() and (revision or path.is_dir()) else path
    except ModelError as error:
        raise ValueError(str(error)) from error


def facts(config: dict[str, Any], hf_overrides: str = "") -> inspection.ModelFacts:
    """The facts for the operator's own forecast. config: with the overrides in it.

    Raises ValueError that names what is wrong with config.json.
    """
    from kvasir_runtime.models.registry import FAMILIES

    shape, architecture = _shape(config), _architecture(config)
    return inspection.ModelFacts(
        architecture=architecture[:MAX_ARCHITECTURE],
        supported=any(architecture in family.architectures for family in FAMILIES),
        cpu_dtype=host_resources.dtype("auto", shape.dtype, "cpu"),
        shape=shape,
        overrides=inspection.overrides_digest(hf_overrides),
    )


def hub_inspection(name: hub.HubName, hf_overrides: str = "") -> inspection.HubInspection:
    """What the hub has under a name now, with the facts of its config. Raises ModelUnavailableError."""
    found = hub.listing(name)
    known, why = None, ""
    try:
        if name.file:
            raise ValueError(f"the header of {name.file} is read when a replica has fetched it")
        document = _read_json(hub.config_file(name, found.commit))
        known = facts(hf_config.overridden(document, hf_config.parsed_overrides(hf_overrides)), hf_overrides)
    except ValueError as error:
        why = str(error)[:MAX_WHY]
    return inspection.HubInspection(commit=found.commit, download_bytes=found.size, facts=known, message=why)


def _shape(config: dict[str, Any]) -> forecast.ModelShape:
    """Raises ValueError; of an architecture that is not served it says that, not which of its fields is missing."""
    from kvasir_runtime.models.registry import FAMILIES

    try:
        return forecast.shape(config)
    except ValueError as error:
        known, architecture = {name for family in FAMILIES for name in family.architectures}, _architecture(config)
        if architecture in known or "architectures" not in config:
            raise
        raise ValueError(f"architecture {architecture} is not supported, and {error}") from error


def _architecture(config: dict[str, Any]) -> str:
    return str((config.get("architectures") or ["unknown"])[0])


def _plan(
    model: str,
    memory: int | None,
    device: host_resources.Device | None,
    as_json: bool,
    facts_to: str,
    **values: Any,
) -> None:
    """Say whether MODEL fits, from its config.json alone: weights, KV cache, how many requests at once.

    MODEL is a directory, a config.json, a .gguf file, or a name on the hub, of which only config.json is fetched.
    Nothing is loaded.
    The exit code is 0 when the longest request fits, 1 when it does not, 2 when there is no verdict.

    \b
      kvasir plan Qwen/Qwen3-0.6B --memory 24Gi --device cuda
      kvasir plan ./model --max-model-len 8192 --json
    """
    revision = values.pop("revision")
    try:
        if facts_to and (named := _on_hub(model, revision)) is not None:
            _write(inspection.encode(hub_inspection(named, values["hf_overrides"])), facts_to)
            return
        document = read_config(model, revision)
        config = hf_config.overridden(document, hf_config.parsed_overrides(values["hf_overrides"]))
        if facts_to:
            _write(inspection.encode(facts(config, values["hf_overrides"])), facts_to)
            return
        where = device or host_resources.device()
        if where == "cuda" and memory is None:
            raise ValueError("set --memory to the memory of the device, for example --memory 24Gi")
        free = memory or host_resources.memory_bytes()
        shared = where == "cpu" and memory is None and host_resources.memory_is_shared()
        options = RuntimeOptions(**values)
        report = fit_report(model, config, memory_bytes=free, device=where, options=options, shared=shared)
    except (ValueError, ModelUnavailableError) as error:
        message = str(error).removeprefix(names.MODEL_UNAVAILABLE)
        raise NoVerdict(source.with_user_name(message, model)) from error
    if as_json:
        document = {**asdict(report), "fitting_context": report.fitting_context}
        click.echo(json.dumps(document, indent=2))
    else:
        if note := hf_config.text_part(document):
            click.echo(f"note: {note}", err=True)
        click.echo(table(report))
    raise SystemExit(0 if report.fit.verdict == "Fits" and report.supported else 1)


def _write(document: bytes, path: str) -> None:
    if path == "-":
        click.echo(document)
        return
    try:
        Path(path).write_bytes(document)
    except OSError as error:
        raise ValueError(f"--facts {path}: cannot be written: {error.strerror}") from error


plan = click.Command(
    "plan",
    callback=_plan,
    help=_plan.__doc__,
    short_help="Say whether a model fits, from its config alone.",
    params=[
        click.Argument(["model"]),
        click.Option(
            ["--memory"],
            type=sizes.Size(),
            metavar="SIZE",
            help="Memory of the device or container, for example 24Gi or 80GB; default: what is free here."
            " With --device cuda it has to be given.",
        ),
        click.Option(
            ["--device"],
            type=click.Choice(["cpu", "cuda"]),
            help="Where it would run; default: cuda if there is a driver.",
        ),
        *click_options(RuntimeOptions, skip=frozenset(RuntimeOptions.model_fields) - TAKEN),
        *click_options(ServeOptions, skip=frozenset(ServeOptions.model_fields) - {"revision"}),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the numbers as JSON."),
        click.Option(
            ["--facts", "facts_to"],
            default="",
            metavar="FILE",
            help="Write only the facts of the config as JSON into this file (for the operator); - prints them.",
        ),
    ],
)
