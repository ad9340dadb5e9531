"""`kvasir gateway simulate`: the choice of replicas on synthetic workloads, beside least load and round robin."""

import json

import click

from kvasir_gateway.choose import STRATEGIES, Strategy


@click.command()
@click.argument("names", nargs=-1, metavar="[WORKLOAD]...")
@click.option("--all", "everything", is_flag=True, help="All workloads.")
@click.option("--by", multiple=True, type=click.Choice(STRATEGIES), help="Only this strategy; may be repeated.")
@click.option("--pickers", type=click.IntRange(1, 16), default=1, show_default=True, help="Gateways side by side.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each workload and strategy.")
@click.option("--processes", type=click.IntRange(1, 64), default=2, show_default=True, help="Runs at the same time.")
def simulate(
    names: tuple[str, ...],
    *,
    everything: bool,
    by: tuple[Strategy, ...],
    pickers: int,
    as_json: bool,
    processes: int,
) -> None:
    """Runs the gateway's choice of replicas before simulated ones.

    Without a WORKLOAD it lists them. The same command prints the same bytes.
    """
    from kvasir_gateway.simulation.simulate import rows
    from kvasir_gateway.simulation.workloads import WORKLOADS

    known = {workload.name: workload for workload in WORKLOADS}
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no workload {unknown[0]}; there are {', '.join(known)}")
    if not names and not everything:
        for workload in known.values():
            click.echo(f"{workload.name:18}  {workload.about}")
        return
    asked = [(name, strategy, pickers) for name in (names or known) for strategy in (by or STRATEGIES)]
    done = []
    for row in rows(asked, processes=min(processes, len(asked))):
        done.append(row)
        if as_json:
            click.echo(json.dumps(row, separators=(",", ":")))
    if not as_json:
        cells = [list(done[0]), *([str(value) for value in row.values()] for row in done)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for line in cells:
            click.echo("  ".join(map(str.ljust, line, widths)).rstrip())
