"""`kvasir operator`: reads the flags and opens the ports, before what takes a second to import."""

from typing import Any

import click

from kvasir_api.option_parser import click_options, parse
from kvasir_kube import process
from kvasir_operator.options import OperatorOptions


@click.command(params=[*click_options(OperatorOptions)], context_settings={"max_content_width": 110})
def operator(**values: Any) -> None:
    """Watches InferenceServices and keeps their pods, their number and their status."""
    options = parse(OperatorOptions, values)
    process.run(_run(options), verbose=options.verbose)


async def _run(options: OperatorOptions) -> None:
    """A probe that comes during the imports waits in the port's queue; refused, it would leave a Warning event."""
    ports = [process.listening(options.host, port) for port in (options.health_port, options.metrics_port)]
    from kvasir_operator import app

    await app.run(options, *ports)


if __name__ == "__main__":
    operator()
