"""`kvasir simulate`: the autoscaler beside rules of its peers, on synthetic traffic; figures as a table, JSON or
plots."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from kvasir_operator.simulation.scenarios import FIGURES, named
from kvasir_operator.simulation.simulate import RULES, SimulationRow, pairs, rows


@click.command()
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
@click.option("--all", "everything", is_flag=True, help="All scenarios but those that take minutes.")
@click.option("--by", multiple=True, type=click.Choice(RULES), help="Only this rule; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each scenario and rule.")
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), help="Directory for plots (needs matplotlib)."
)
@click.option("--processes", type=click.IntRange(1, 64), default=2, show_default=True, help="Runs at the same time.")
def simulate(
    names: tuple[str, ...], *, everything: bool, by: tuple[str, ...], as_json: bool, plots: Path | None, processes: int
) -> None:
    """Runs the autoscaler on simulated traffic, beside re-implemented rules of its peers.

    Without a SCENARIO it lists them. The same command prints the same bytes.
    """
    known = named()
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no scenario {unknown[0]}; there are {', '.join(known)}")
    if not names and not everything:
        for scenario in known.values():
            click.echo(f"{scenario.name:22}  {scenario.about}")
        return
    asked = pairs(() if everything else names, by)
    done = []
    for row in rows(asked, processes=min(processes, len(asked))):
        done.append(row)
        if as_json:
            click.echo(json.dumps(row.line, separators=(",", ":")))
    if not as_json:
        click.echo(_table([row.line for row in done]))
    if plots is not None:
        _draw(done, plots)


def _table(lines: list[dict[str, Any]]) -> str:
    head = ["scenario", "by", *FIGURES]
    cells = [[str(line.get(name, "")) for name in head] for line in lines]
    widths = [max(len(row[i]) for row in [head, *cells]) for i in range(len(head))]
    return "\n".join(
        "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *cells]
    )


def _draw(done: list[SimulationRow], directory: Path) -> None:
    try:
        from kvasir_operator.simulation.plots import draw
    except ModuleNotFoundError as error:
        raise click.ClickException(f"--plots needs {error.name}, which is not installed") from error
    directory.mkdir(parents=True, exist_ok=True)
    by_scenario = defaultdict(list)
    for row in done:
        by_scenario[row.scenario].append(row)
    for scenario in named().values():
        if scenario.name in by_scenario:
            (directory / f"{scenario.name}.svg").write_bytes(draw(scenario, by_scenario[scenario.name]))
