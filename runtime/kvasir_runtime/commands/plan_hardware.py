"""What `kvasir plan` forecasts for: a device, its memory and what it can do at best, by options or by this machine."""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from kvasir_api import layouts
from kvasir_api.device_peaks import BY_SHORT_NAME, PEAKS
from kvasir_api.roofline import Card
from kvasir_runtime.commands import host_resources, sizes


class _Rate(click.FloatRange):
    """A number that a device may have."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        return self.fail(f"{value} is no number", param, ctx) if math.isnan(found) else found


_POSITIVE: Final = _Rate(min=1e-3, max=1e9)
OPTIONS: Final = (
    click.Option(
        ["--memory"],
        type=sizes.Size(),
        metavar="SIZE",
        help="Memory of the device or container, for example 24Gi or 80GB; default: that of --gpu, else what is free"
        " here. With --device cuda one of both has to be given.",
    ),
    click.Option(
        ["--device"],
        type=click.Choice(["cpu", "cuda"]),
        help="Where it would run; default: cuda with --gpu or if there is a driver.",
    ),
    click.Option(
        ["--gpu"],
        type=click.Choice([*BY_SHORT_NAME, *PEAKS], case_sensitive=False),
        metavar="NAME",
        help="The card, by its driver's name or a short one, for its memory and the speed at best: "
        f"{', '.join(BY_SHORT_NAME)}.",
    ),
    click.Option(
        ["--memory-gigabytes-per-second"],
        type=_POSITIVE,
        metavar="RATE",
        help="Of another device, such as the processors of a socket: bandwidth of its memory, in 10^9 bytes, as in an"
        " AcceleratorClass. With --fp16-teraflops.",
    ),
    click.Option(
        ["--fp16-teraflops"],
        type=_POSITIVE,
        metavar="RATE",
        help="Of another device: dense products in 16 bits, with --memory-gigabytes-per-second.",
    ),
    click.Option(
        ["--link-gigabytes-per-second"],
        type=_POSITIVE,
        metavar="RATE",
        help="Between devices of a node, in one direction; default: of --gpu its NVLink or PCIe, of processors the"
        " memory, else 25.",
    ),
    click.Option(
        ["--network-gigabits-per-second"],
        type=_POSITIVE,
        default=layouts.NETWORK_BYTES_PER_S * 8 / 1e9,
        show_default=True,
        metavar="RATE",
        help="Of a node, in one direction: between devices of several, and of blocks that replicas hand over.",
    ),
    click.Option(
        ["--node-devices"],
        type=click.IntRange(min=1),
        default=layouts.NODE_DEVICES,
        show_default=True,
        metavar="N",
        help="Devices of a node, for --count.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHardware:
    """memory_bytes: of a device, or container. shared: no container limits it. card: None where its speed is not known.

    network_bytes_per_s: of a node of so many devices.
    """

    device: host_resources.Device
    memory_bytes: int
    shared: bool
    card: Card | None
    network_bytes_per_s: float
    node_devices: int


def hardware(
    *,
    memory: int | None,
    device: host_resources.Device | None,
    gpu: str | None,
    memory_gigabytes_per_second: float | None,
    fp16_teraflops: float | None,
    link_gigabytes_per_second: float | None,
    network_gigabits_per_second: float,
    node_devices: int,
) -> PlanHardware:
    """By OPTIONS. Raises ValueError for those that do not go together."""
    sheet = (BY_SHORT_NAME.get(gpu) or PEAKS[gpu]) if gpu else None
    if sheet is not None and device == "cpu":
        raise ValueError(f"--gpu {gpu} is no processor: leave out --device cpu")
    where = device or ("cuda" if sheet is not None else host_resources.device())
    known = memory if memory or sheet is None else sheet.memory_bytes
    if where == "cuda" and known is None:
        raise ValueError("set --memory to the memory of the device, for example --memory 24Gi, or name it by --gpu")
    rates = memory_gigabytes_per_second, fp16_teraflops
    card = sheet.card if sheet is not None else _card(*rates, where)
    if sheet is not None and any(rates):
        raise ValueError(f"--gpu {gpu} has a data sheet: leave out --memory-gigabytes-per-second and --fp16-teraflops")
    if link_gigabytes_per_second:
        if card is None:
            raise ValueError("--link-gigabytes-per-second needs --gpu, or the rates of the device")
        card = replace(card, link_bytes_per_s=link_gigabytes_per_second * 1e9)
    return PlanHardware(
        device=where,
        memory_bytes=known or host_resources.memory_bytes(),
        shared=where == "cpu" and known is None and host_resources.memory_is_shared(),
        card=card,
        network_bytes_per_s=network_gigabits_per_second * 1e9 / 8,
        node_devices=node_devices,
    )


def _card(memory_rate: float | None, teraflops: float | None, device: host_resources.Device) -> Card | None:
    """Of a device that has no data sheet here. Ranks on processors exchange through the memory."""
    if memory_rate is None and teraflops is None:
        return None
    if memory_rate is None or teraflops is None:
        raise ValueError(
            "--memory-gigabytes-per-second and --fp16-teraflops are needed both: a step is bound by either"
        )
    found = Card(memory_bytes_per_s=int(memory_rate * 1e9), flops_per_s=int(teraflops * 1e12))
    return found if device == "cuda" else replace(found, link_bytes_per_s=found.memory_bytes_per_s)
