"""What recorded graphs are worth: time of a decode step with and without them, and the memory that they take."""

from collections.abc import Iterator
from typing import Final

import torch

from bench.gpu import decode
from bench.gpu.book import NO_GOAL, Cell, failed, measured, skipped
from bench.gpu.inprocess import Served
from bench.gpu.section import NO_TIME, Context

LEAST_S: Final = 30.0
_MIB: Final = 1 << 20


def cells(context: Context) -> Iterator[Cell]:
    """Steps with graphs and without, of the same cache; then what graphs take, as counted and as the device says."""
    sizes = context.sizes
    batches = [cell for cell in sizes.decode if cell[1] == sizes.decode[0][1]]
    used: dict[bool, int] = {}
    for on in (True, False):
        label = "graphs" if on else "no graphs"
        if context.left_s < (LEAST_S if sizes.name == "full" else 1.0):
            yield from (skipped("graphs", f"decode, {label}, {b} x {c}", NO_TIME) for b, c in batches)
            continue
        held = max(b * (c + decode.ROOM) for b, c in batches)
        served = Served(context.model, sizes, context.device, cuda_graphs=on, kv_cache_tokens=held)
        try:
            for batch, known in batches:
                name = f"decode, {label}, {batch} x {known}"
                yield decode.decoded(context, served, (batch, known), name, NO_GOAL, "graphs")
            used[on] = _used(context.torch_device)
            if on:
                counted = getattr(served.runner, "graph_bytes", 0)
                yield measured("graphs", "rows and graphs, as counted", [counted / _MIB], unit="MiB")
        except Exception as error:  # noqa: BLE001 -- one way must not cost the other
            yield failed("graphs", f"decode, {label}", str(error))
        finally:
            served.close()
    if len(used) == 2:
        yield measured("graphs", "with graphs, beyond without", [(used[True] - used[False]) / _MIB], unit="MiB")


def _used(device: torch.device) -> int:
    """Bytes of the device that are taken, by whomever."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free
