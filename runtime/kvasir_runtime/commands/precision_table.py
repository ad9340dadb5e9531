"""What a model takes, and what its tokens cost, in each precision that weights can have in memory. Called by `plan`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir_api import inspection
from kvasir_api.forecast import MemoryFit
from kvasir_api.options import RuntimeOptions
from kvasir_api.roofline import Card
from kvasir_api.stored_bits import Compute
from kvasir_runtime.server.banner import size

PRECISIONS: Final = {"cuda": ("auto", "fp8", "int8", "int4"), "cpu": ("auto", "int8", "int4")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionFit:
    """quantization: the option. concurrency: requests of the longest length at once.

    stream_tokens_per_s, batch_tokens_per_s: at best, for one request alone and for a full batch; 0 without a card.
    price_per_million: of tokens of a full batch at best, in the unit of the price of an hour; 0 without one.
    """

    quantization: str
    fits: bool
    weights_bytes: int
    kv_tokens: int
    concurrency: float
    stream_tokens_per_s: float = 0.0
    batch_tokens_per_s: float = 0.0
    price_per_million: float = 0.0


def precision_fits(
    facts: inspection.ModelFacts,
    options: RuntimeOptions,
    fit: Callable[[RuntimeOptions], MemoryFit],
    *,
    device: Compute,
    memory_bytes: int,
    card: Card | None = None,
    price_per_hour: float = 0.0,
) -> list[PrecisionFit]:
    """One row for each precision; of a checkpoint that is in fewer bits already, its own and those that take less.

    fit: the forecast of memory with other options. card: for speeds. price_per_hour: of the device.
    """
    rows: list[PrecisionFit] = []
    for name in PRECISIONS[device]:
        chosen = options.model_copy(update={"quantization": name})
        found = fit(chosen)
        if rows and facts.shape.held.stored and found.weights_bytes >= rows[0].weights_bytes:
            continue
        speeds = inspection.predicted(facts, chosen, device=device, memory_bytes=memory_bytes, card=card)
        batch = speeds.batch_tokens_per_s if found.verdict == "Fits" else 0.0
        row = PrecisionFit(
            quantization=name,
            fits=found.verdict == "Fits",
            weights_bytes=found.weights_bytes,
            kv_tokens=found.kv_tokens,
            concurrency=found.concurrency,
            stream_tokens_per_s=speeds.stream_tokens_per_s if batch else 0.0,
            batch_tokens_per_s=batch,
            price_per_million=price_per_hour / 3600 / batch * 1e6 if batch else 0.0,
        )
        rows.append(row)
    return rows


def table(rows: list[PrecisionFit]) -> str:
    """Aligned columns; speeds and prices where there are some, `-` in a row that does not fit."""
    fast, priced = any(row.batch_tokens_per_s for row in rows), any(row.price_per_million for row in rows)
    head = ["PRECISION", "FITS", "WEIGHTS", "KV TOKENS", "REQUESTS"]
    cells = [head + ["TOKENS/S ALONE", "IN A BATCH"] * fast + ["PRICE OF A MILLION"] * priced]
    for row in rows:
        best = [f"{row.stream_tokens_per_s:,.0f}", f"{row.batch_tokens_per_s:,.0f}", f"{row.price_per_million:.3g}"]
        *speeds, price = best if row.batch_tokens_per_s else ["-"] * len(best)
        fit = ["yes" if row.fits else "no", size(row.weights_bytes), f"{row.kv_tokens:,}", f"{row.concurrency:.2f}"]
        cells.append([row.quantization, *fit, *speeds * fast, *[price] * priced])
    return aligned(cells)


def aligned(cells: list[list[str]]) -> str:
    """Lines of cells, each column as wide as its widest."""
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
