"""How several devices could compute a model, as a table. Called by `plan`."""

from typing import Any

from kvasir_api import inspection
from kvasir_api.layouts import LayoutForecast, Wanted, forecasts, possible, room_bytes, weight_parts
from kvasir_api.options import RuntimeOptions
from kvasir_api.rank_state import MOST_RANKS
from kvasir_runtime.commands.fit_report import FitReport
from kvasir_runtime.commands.plan_hardware import PlanHardware
from kvasir_runtime.commands.precision_table import aligned

NOTE = "ranks and stages compute on processors in this version; of cards the table is a forecast"


def of_report(
    facts: inspection.ModelFacts,
    options: RuntimeOptions,
    report: FitReport,
    on: PlanHardware,
    devices: int,
    price: float,
    objectives_s: tuple[float, float],
) -> tuple[LayoutForecast, ...]:
    """Of up to so many devices, each like the one of the report. objectives_s: for the first token, and between two
    tokens, 0 for none. Raises ValueError for what is not divided.
    """
    if options.ranks > 1 or options.weights_host_bytes or report.drafter.weights_bytes:
        raise ValueError("--count chooses the layout: leave out sizes of ranks, --weights-host-bytes and draft models")
    if facts.shape.keeps_nothing:
        raise ValueError("--count: encoders are computed by one process")
    if report.device == "cpu" and devices > MOST_RANKS:
        raise ValueError(f"--count {devices}: at most {MOST_RANKS} ranks compute a model on processors")
    wanted = Wanted(
        room_bytes=room_bytes(report.fit, report.device, report.memory_bytes, report.memory_fraction),
        one=report.fit,
        parts=weight_parts(
            inspection.held_on(facts.shape, report.device),
            inspection.dtype_of(facts, options, report.device),
            options.quantization,
        ),
        max_sequences=options.max_sequences,
        longest=report.max_model_len,
        ttft_s=objectives_s[0],
        tpot_s=objectives_s[1],
        price_per_hour=price,
        network_bytes_per_s=on.network_bytes_per_s,
        node_devices=on.node_devices,
    )
    roofline = inspection.roofline(facts, options, on.card, on.device) if on.card else None
    return forecasts(facts.shape, wanted, possible(facts.shape, devices), roofline)


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
            "price_per_hour": one.price_per_hour,
            "moved_s": one.moved_s,
            "chosen": one.chosen,
        }
        for one in found
    ]


def table(found: tuple[LayoutForecast, ...], *, is_card: bool) -> str:
    """Aligned columns; speeds and prices where there are some, * at the smallest that fits and meets the objectives."""
    fast, priced = any(one.tpot_s for one in found), any(one.price_per_hour for one in found)
    cells = [
        ["LAYOUT", "DEVICES", "FITS", "KV TOKENS"]
        + ["TTFT", "TPOT", "TOKENS/S IN A BATCH", "HANDED OVER"] * fast
        + ["PRICE OF AN HOUR"] * priced
        + ["OF A MILLION"] * (fast and priced)
    ]
    for one in found:
        speeds = [_ms(one.ttft_s), _ms(one.tpot_s), f"{one.batch_tokens_per_s:,.0f}", f"+{_ms(one.moved_s)}"]
        million = f"{one.price_per_million:.3g}"
        if not one.tpot_s:
            speeds, million = ["-"] * len(speeds), "-"
        fit = [str(one.layout.devices), "yes" if one.fits else "no", f"{one.kv_tokens:,}"]
        prices = [f"{one.price_per_hour:.3g}"] * priced + [million] * (fast and priced)
        cells.append([f"{'*' if one.chosen else ' '} {_name(one)}", *fit, *speeds * fast, *prices])
    return "\n".join([aligned(cells), _verdict(found), *[NOTE] * is_card])


def _verdict(found: tuple[LayoutForecast, ...]) -> str:
    """The layout that is chosen, with its price."""
    chosen = next((one for one in found if one.chosen), None)
    if chosen is None:
        why = "meets the objectives" if any(one.fits for one in found) else "holds the longest request"
        return f"none {why}"
    price = f" at {chosen.price_per_hour:.3g} an hour" if chosen.price_per_hour else ""
    devices = "1 device" if chosen.layout.devices == 1 else f"{chosen.layout.devices} devices"
    return f"chosen: {_name(chosen)}, {devices}{price}"


def _ms(seconds: float) -> str:
    return f"{float(f'{seconds * 1000:.3g}'):,g} ms"


def _name(one: LayoutForecast) -> str:
    experts = ", whole experts" if one.layout.whole_experts else ""
    return f"tensor {one.layout.tensor}, pipeline {one.layout.stages}{experts}"
