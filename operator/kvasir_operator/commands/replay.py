"""`kvasir replay`: recorded readings through the autoscaler's own code."""

from typing import BinaryIO

import click

from kvasir_operator.scaling.recording import InvalidRecordingError, replayed


@click.command()
@click.argument("file", type=click.File("rb"))
def replay(file: BinaryIO) -> None:
    """Prints the decision of every tick in FILE, as JSON lines; - reads standard input.

    FILE has readings that `kvasir operator --record-readings` wrote, or that were written by hand.
    """
    try:
        for line in replayed(file):
            click.echo(line, nl=False)
    except InvalidRecordingError as error:
        raise click.ClickException(str(error)) from error
