"""`kvasir plan MODEL`: does it fit? From config.json alone, by the forecast that the runtime uses."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from kvasir_api import forecast, hf_config, inspection, model_uri, names, weight_offload
from kvasir_api.layouts import LayoutForecast
from kvasir_api.option_parser import click_options
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_api.speculation import draft_model
from kvasir_runtime import source
from kvasir_runtime.commands import layout_table, model_config, model_facts, plan_hardware, precision_table
from kvasir_runtime.commands.fit_report import FitReport, fit_report
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.server.banner import size

TAKEN = frozenset(
    {"dtype", "quantization", "kv_cache_dtype", "max_model_len", "memory_percent", "max_batch_tokens", "hf_overrides"}
    | {
        "weights_host_bytes",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
        "nnodes",
        "speculation",
        "ttft_milliseconds",
    }
)
OF_SERVE = frozenset({"revision"})
HARDWARE = tuple(str(option.name) for option in plan_hardware.OPTIONS)


class NoVerdict(click.ClickException):
    """The model cannot be judged."""

    exit_code = 2


def table(report: FitReport) -> str:
    """For a person: one line per number, then the verdict."""
    fit = report.fit
    support = "" if report.supported else ", NOT supported but perhaps through transformers"
    active = f", {count(report.active_parameters)} active" if report.active_parameters < report.parameters else ""
    rows = [
        ("model", f"{report.model} ({report.architecture}{support}, {count(report.parameters)} parameters{active})"),
        ("memory", f"{size(report.memory_bytes)} on {report.device}, {_taken(report)}"),
        ("weights", f"{size(fit.weights_bytes)} in {report.dtype}{_and_bits(report)}{_on_host(fit)}"),
        *([("draft model", size(report.drafter.weights_bytes))] if report.drafter.weights_bytes else []),
        ("process", f"{_processes(report)}, and {size(fit.activation_bytes)} in a step"),
        *_cache(report),
        ("verdict", verdict(report)),
    ]
    return "\n".join(f"{name:<13}{value}" for name, value in rows)


def _cache(report: FitReport) -> list[tuple[str, str]]:
    """What requests share: the cache, or the step of an encoder."""
    fit = report.fit
    if not fit.kv_bytes_per_token:
        return [
            ("KV cache", "none: an encoder computes each text in one step"),
            ("step", f"up to {report.step_tokens:,} tokens of {report.max_sequences} texts at most"),
        ]
    requests = f"{fit.concurrency:.2f} requests of {report.max_model_len:,} tokens, {report.max_sequences} at most"
    return [
        ("KV cache", f"{fit.kv_tokens:,} tokens of {size(fit.kv_bytes_per_token)}{_windows(report)}{_parts(report)}"),
        ("concurrency", requests),
    ]


def _taken(report: FitReport) -> str:
    if report.shared:
        return "which others use too: a quarter of it for the KV cache, at most 8 GiB"
    return f"{report.memory_fraction:.0%} of it to be used"


def _processes(report: FitReport) -> str:
    times = f"{report.ranks} times " if report.ranks > 1 else ""
    return times + size(forecast.PROCESS_BYTES[report.device])


def _windows(report: FitReport) -> str:
    """What a model with windows takes for the longest request, where that is less than its length."""
    taken = report.fit.sequence_tokens
    return f"; {report.max_model_len:,} tokens of one request take {taken:,}" if taken < report.max_model_len else ""


def _parts(report: FitReport) -> str:
    """Where ranks have requests of their own."""
    return f"; in {report.data_ranks} parts, one of which holds a request" if report.data_ranks > 1 else ""


def _and_bits(report: FitReport) -> str:
    if report.quantization == "auto" and report.stored_sixteenths:
        full = f" ({report.stored_plain:,} of their numbers in full)" if report.stored_plain else ""
        return f", matrices in {report.stored_sixteenths / 2:g} bits{full} as the checkpoint has them"
    return f" and {report.quantization}" if report.quantization in ("fp8", "int8", "int4") else ""


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


def _plan(
    model: str,
    as_json: bool,
    facts_to: str,
    price: float,
    devices: int,
    itl_milliseconds: int,
    **values: Any,
) -> None:
    """Say whether MODEL fits, from its config.json alone: weights, KV cache, how many requests at once, and the same
    in each precision.

    MODEL is a directory, a config.json, a .gguf file, or a name on the hub, in a bucket or a registry, of which only
    config.json is fetched. Nothing is loaded.
    The exit code is 0 when the longest request fits, with --count a layout, 1 when it does not, 2 without a verdict.

    \b
      kvasir plan Qwen/Qwen3-0.6B --memory 24Gi --device cuda
      kvasir plan ./model --max-model-len 8192 --json
      kvasir plan hf://Qwen/Qwen3-8B --gpu H100 --price 2.5
      kvasir plan hf://Qwen/Qwen3-32B --gpu H100 --count 8
    """
    revision = values.pop("revision")
    try:
        if facts_to:
            _write(_facts(model, revision, values["hf_overrides"], values["speculation"]), facts_to)
            return
        document = model_config.read_config(model, revision)
        config = hf_config.overridden(document, hf_config.parsed_overrides(values["hf_overrides"]))
        on = plan_hardware.hardware(**{name: values.pop(name) for name in HARDWARE})
        options = ServeOptions(model=model, **values)
        if itl_milliseconds and (devices < 2 or on.card is None):
            raise ValueError("--itl-milliseconds needs --count, and --gpu or the rates of the device")
        free = on.memory_bytes * (options.nnodes if on.device == "cpu" else options.ranks)
        drafter = model_config.read_config(name) if (name := draft_model(options.speculation)) else None
        judged = partial(
            fit_report, model, config, memory_bytes=free, device=on.device, shared=on.shared, drafter=drafter
        )
        report = judged(options=options)
        facts = model_facts.facts(config)
        objectives = options.ttft_milliseconds / 1000, itl_milliseconds / 1000
        layouts = layout_table.of_report(facts, options, report, on, devices, price, objectives) if devices > 1 else ()
        speeds = partial(precision_table.precision_fits, device=on.device, memory_bytes=free, card=on.card)
        rows = speeds(facts, options, lambda chosen: judged(options=chosen).fit, price_per_hour=price)
    except (ValueError, ModelError, ModelUnavailableError) as error:
        message = str(error).removeprefix(names.MODEL_UNAVAILABLE)
        raise NoVerdict(source.with_user_name(message, model)) from error
    if as_json:
        click.echo(_json(report, rows, layouts))
    else:
        if note := hf_config.text_part(document):
            click.echo(f"note: {note}", err=True)
        listed = [table(report), precision_table.table(rows)]
        click.echo(
            "\n\n".join([*listed, layout_table.table(layouts, is_card=on.device == "cuda")] if layouts else listed)
        )
    fits = any(one.chosen for one in layouts) if layouts else report.fit.verdict == "Fits"
    raise SystemExit(0 if fits and report.supported else 1)


def _json(report: FitReport, rows: list[precision_table.PrecisionFit], layouts: tuple[LayoutForecast, ...]) -> str:
    found = {**asdict(report), "fitting_context": report.fitting_context, "precisions": [*map(asdict, rows)]}
    if layouts:
        found["layouts"] = layout_table.rows_of(layouts)
    return json.dumps(found, indent=2)


def _facts(model: str, revision: str, hf_overrides: str, speculation: str) -> bytes:
    """What the operator reads. Raises ValueError, ModelError, ModelUnavailableError."""
    if (named := model_config.on_hub(model, revision)) is not None:
        return inspection.encode(model_facts.hub_inspection(named, hf_overrides, speculation))
    if model_uri.is_fetched(model):
        return inspection.encode(model_facts.remote_inspection(model, hf_overrides, speculation))
    document = model_config.read_config(model, revision)
    config = hf_config.overridden(document, hf_config.parsed_overrides(hf_overrides))
    return inspection.encode(model_facts.facts(config, hf_overrides, speculation))


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
        *plan_hardware.OPTIONS,
        *click_options(RuntimeOptions, skip=frozenset(RuntimeOptions.model_fields) - TAKEN),
        *click_options(ServeOptions, skip=frozenset(ServeOptions.model_fields) - OF_SERVE),
        click.Option(
            ["--price"],
            type=click.FloatRange(min=0),
            default=0.0,
            metavar="PRICE",
            help="Of the device and hour, in any unit; for the price of a million tokens at best.",
        ),
        click.Option(
            ["--count", "devices"],
            type=click.IntRange(min=1, max=64),
            default=1,
            metavar="N",
            help="Devices of that memory: also print how the model could be divided among up to so many.",
        ),
        click.Option(
            ["--itl-milliseconds"],
            type=click.IntRange(min=0),
            default=0,
            metavar="INTEGER",
            help="With --count: objective for the time between two tokens of one request alone; 0 sets none.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the numbers as JSON."),
        click.Option(
            ["--facts", "facts_to"],
            default="",
            metavar="FILE",
            help="Write only the facts of the config as JSON into this file (for the operator); - prints them.",
        ),
    ],
)
