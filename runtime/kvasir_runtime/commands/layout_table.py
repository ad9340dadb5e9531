"""How several devices could compute a model, as a table. Called by `plan`."""

from typing import Any

from kvasir_api import forecast
from kvasir_api.layouts import LayoutForecast, Wanted, forecasts, possible
from kvasir_api.multi_node import MOST_RANKS
from kvasir_api.options import RuntimeOptions
from kvasir_api.roofline import Roofline
from kvasir_runtime.commands.fit_report import FitReport
from kvasir_runtime.commands.precision_table import aligned

NOTE = (
    "ranks and stages compute on processors in this version; of cards the table is a forecast, at 25 GB/s between them"
)


def of_report(
    shape: forecast.ModelShape,
    options: RuntimeOptions,
    report: FitReport,
    devices: int,
    price: float,
    roofline: Roofline | None,
) -> tuple[LayoutForecast, ...]:
    """Of up to so many devices, each like the one of the report. Raises ValueError for what is not divided."""
    if options.ranks > 1 or options.weights_host_bytes or report.drafter.weights_bytes:
        raise ValueError("--count chooses the layout: leave out sizes of ranks, --weights-host-bytes and draft models")
    if shape.keeps_nothing:
        raise ValueError("--count: encoders are computed by one process")
    if report.device == "cpu" and devices > MOST_RANKS:
        raise ValueError(f"--count {devices}: at most {MOST_RANKS} ranks compute a model on processors")
    taken = forecast.PROCESS_BYTES[report.device] + report.fit.activation_bytes
    wanted = Wanted(
        room_bytes=int(report.memory_bytes * report.memory_fraction) - taken,
        one=report.fit,
        max_sequences=options.max_sequences,
        longest=report.max_model_len,
        ttft_s=options.ttft_milliseconds / 1000,
        price_per_hour=price,
    )
    return forecasts(shape, wanted, possible(shape, devices), roofline)


def rows_of(found: tuple[LayoutForecast, ...]) -> list[dict[str, Any]]:
    """For JSON, one object for each layout."""
    return [
        {
            "tensor": one.layout.tensor,
            "pipeline": one.layout.stages,
            "whole_experts": one.layout.whole_experts,
            "devices": one.layout.devices,
            "fits": one.fits,
            "kv_tokens": one.kv_tokens,
            "ttft_s": one.ttft_s,
            "tpot_s": one.tpot_s,
            "batch_tokens_per_s": one.batch_tokens_per_s,
            "price_per_million": one.price_per_million,
            "chosen": one.chosen,
        }
        for one in found
    ]


def table(found: tuple[LayoutForecast, ...], *, is_card: bool) -> str:
    """Aligned columns; speeds and prices where there are some, * at the smallest that fits and meets the objective."""
    fast, priced = any(one.tpot_s for one in found), any(one.price_per_million for one in found)
    head = ["LAYOUT", "DEVICES", "FITS", "KV TOKENS"]
    cells = [head + ["TTFT", "TPOT", "TOKENS/S IN A BATCH"] * fast + ["PRICE OF A MILLION"] * priced]
    for one in found:
        speeds = [f"{one.ttft_s * 1000:.3g} ms", f"{one.tpot_s * 1000:.3g} ms", f"{one.batch_tokens_per_s:,.0f}"]
        price = f"{one.price_per_million:.3g}"
        if not one.tpot_s:
            speeds, price = ["-"] * len(speeds), "-"
        fit = [str(one.layout.devices), "yes" if one.fits else "no", f"{one.kv_tokens:,}"]
        cells.append([f"{'*' if one.chosen else ' '} {_name(one)}", *fit, *speeds * fast, *[price] * priced])
    return f"{aligned(cells)}\n{NOTE}" if is_card else aligned(cells)


def _name(one: LayoutForecast) -> str:
    experts = ", whole experts" if one.layout.whole_experts else ""
    return f"tensor {one.layout.tensor}, pipeline {one.layout.stages}{experts}"
