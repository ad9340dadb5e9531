"""What options of `kvasir plan` say of the hardware: rates by their units, and which do not go together."""

from typing import Any

import pytest
from click import Command
from click.testing import CliRunner

from kvasir_runtime.commands.plan_hardware import OPTIONS, PlanHardware, hardware

GIB = 1 << 30
RATES = ("--memory-gigabytes-per-second", "200", "--fp16-teraflops", "4")


def hardware_of(*arguments: str) -> PlanHardware:
    """By the options as they are read, with their defaults."""
    found: list[PlanHardware] = []

    def keep(**given: Any) -> None:
        found.append(hardware(**given))

    command = Command("plan", params=list(OPTIONS), callback=keep)
    result = CliRunner().invoke(command, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        # (bytes a second of the memory, operations a second, bytes a second of a link)
        pytest.param(("--gpu", "H100"), (3_350e9, 989e12, 450e9), id="a data sheet"),
        pytest.param(("--gpu", "h100", "--link-gigabytes-per-second", "25"), (3_350e9, 989e12, 25e9), id="its link"),
        pytest.param(("--device", "cpu", *RATES), (200e9, 4e12, 200e9), id="processors exchange through the memory"),
        pytest.param(("--device", "cuda", "--memory", "24Gi", *RATES), (200e9, 4e12, 25e9), id="a card of no sheet"),
        pytest.param(
            ("--device", "cpu", *RATES, "--link-gigabytes-per-second", "0.5"), (200e9, 4e12, 0.5e9), id="a slow link"
        ),
        pytest.param(
            ("--device", "cpu", "--memory-gigabytes-per-second", "0.25", "--fp16-teraflops", "0.001"),
            (0.25e9, 1e9, 0.25e9),
            id="fractions",
        ),
    ],
)
def test_rates_of_a_device_are_read_by_their_units(
    arguments: tuple[str, ...], want: tuple[float, float, float]
) -> None:
    card = hardware_of("--memory", "80Gi", *arguments).card
    assert card is not None
    assert (card.memory_bytes_per_s, card.flops_per_s, card.link_bytes_per_s) == pytest.approx(want)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ((), (12.5e9, 8)),
        (("--network-gigabits-per-second", "10"), (1.25e9, 8)),
        (("--network-gigabits-per-second", "0.5", "--node-devices", "1"), (0.0625e9, 1)),
        (("--node-devices", "4"), (12.5e9, 4)),
    ],
)
def test_the_network_is_told_in_bits_and_reckoned_in_bytes(arguments: tuple[str, ...], want: tuple[float, int]) -> None:
    found = hardware_of("--device", "cpu", "--memory", "8Gi", *arguments)
    assert (found.network_bytes_per_s, found.node_devices) == want
    assert (found.card, found.memory_bytes, found.shared) == (None, 8 * GIB, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--network-gigabits-per-second", "0"), "0.0 is not in the range", id="no network"),
        pytest.param(("--network-gigabits-per-second", "nan"), "nan is no number", id="no number"),
        pytest.param(("--network-gigabits-per-second", "inf"), "inf is not in the range", id="without an end"),
        pytest.param(("--link-gigabytes-per-second", "-1"), "-1.0 is not in the range", id="a negative link"),
        pytest.param(("--node-devices", "0"), "0 is not in the range", id="a node of no devices"),
        pytest.param(("--fp16-teraflops", "many"), "'many' is not a valid float", id="a word"),
    ],
)
def test_what_no_device_has_is_refused(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(Command("plan", params=list(OPTIONS), callback=hardware), list(arguments))
    assert (result.exit_code, words in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cpu", "--memory-gigabytes-per-second", "200"), "are needed both"),
        (("--device", "cpu", "--link-gigabytes-per-second", "9"), "needs --gpu, or the rates of the device"),
        (("--gpu", "L4", *RATES), "--gpu L4 has a data sheet"),
        (("--gpu", "L4", "--device", "cpu"), "--gpu L4 is no processor"),
        (("--device", "cuda", *RATES), "set --memory"),
    ],
)
def test_rates_that_do_not_go_together_are_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hardware_of(*arguments)
