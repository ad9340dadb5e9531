"""The command `kvasir gateway`: the endpoint picker, and the bootstrap configuration of Envoy.

Both run in the gateway's pod, the bootstrap as its init container; they and Envoy share one directory. What takes long
to import is imported where it is used.
"""

import asyncio
from pathlib import PurePosixPath
from typing import Any

import click

from kvasir_api.command import click_options, parse
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy import bootstrap as envoy
from kvasir_gateway.envoy import files
from kvasir_gateway.options import BootstrapOptions, DrainOptions, PickerOptions
from kvasir_gateway.simulation.command import simulate
from kvasir_kube import process


@click.group(invoke_without_command=True, params=[*click_options(PickerOptions)])
@click.pass_context
def gateway(context: click.Context, /, **values: Any) -> None:
    """Run the endpoint picker beside Envoy: it chooses the replica of each request."""
    if not context.invoked_subcommand:
        process.run(_run(parse(PickerOptions, values)))


async def _run(options: PickerOptions) -> None:
    """A probe that comes during the imports waits in the port's queue; refused, it would leave a Warning event."""
    state_port = process.listening(options.address, options.state_port)
    from kvasir_gateway.picker import app
    from kvasir_gateway.picker.sources import InformerSource
    from kvasir_kube.client import Client, configuration
    from kvasir_kube.state_reader import StateReader

    settings = app.PickerSettings(
        directory=options.config_dir,
        max_body_bytes=options.max_body_bytes,
        reading_period_s=options.reading_period,
        policy=ChoicePolicy(strategy=options.strategy),
    )
    stop = process.stop_event()
    config = await configuration(options.kubeconfig)
    async with Client(config) as cluster, StateReader() as states:
        objects = InformerSource(cluster, namespace=options.namespace)
        await app.run(settings, state_port=state_port, objects=objects, states=states, stop=stop)


@gateway.command(params=[*click_options(BootstrapOptions)])
def bootstrap(**values: Any) -> None:
    """Write Envoy's bootstrap configuration and exit: the gateway pod's init container."""
    options = parse(BootstrapOptions, values)
    settings = envoy.BootstrapSettings(
        directory=PurePosixPath(options.config_dir),
        address=options.address,
        port=options.port,
        max_body_bytes=options.max_body_bytes,
        max_connections=options.max_connections,
        idle_timeout_s=options.idle_timeout,
    )
    files.write_bootstrap(settings)
    print(f"wrote {options.config_dir / envoy.BOOTSTRAP}")


@gateway.command(params=[*click_options(DrainOptions)])
def drain(**values: Any) -> None:
    """Take no new requests, and exit when the last one has ended: the preStop hook of the gateway pod."""
    from kvasir_gateway.picker import drain_server

    options = parse(DrainOptions, values)
    try:
        print(asyncio.run(drain_server.request_drain(options.config_dir, on=not options.undo)))
    except OSError as error:
        raise click.ClickException(str(error)) from error


gateway.add_command(simulate)

if __name__ == "__main__":
    gateway()
