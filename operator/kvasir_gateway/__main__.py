"""The command `kvasir gateway`: the endpoint picker, and the bootstrap configuration of Envoy.

Both run in the gateway's pod, the bootstrap as its init container; they and Envoy share one directory. What takes long
to import is imported where it is used.
"""

import asyncio
import contextlib
import io
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from kvasir_api.option_parser import click_options, parse
from kvasir_api.served_names import reserved_names
from kvasir_gateway import choice_records
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy import bootstrap as envoy
from kvasir_gateway.envoy import files
from kvasir_gateway.hold_queue import HoldLimits
from kvasir_gateway.options import BootstrapOptions, DrainOptions, PickerOptions, RelayOptions
from kvasir_gateway.simulation.command import simulate
from kvasir_kube import process

if TYPE_CHECKING:
    from kvasir_gateway.picker.endpoint_picker_server import EndpointPickerSettings


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
    from kvasir_gateway.picker.audit_log import AuditLog
    from kvasir_gateway.picker.request_parser import RequestBounds
    from kvasir_gateway.picker.sources import InformerSource
    from kvasir_gateway.picker.tenant_source import TenantSource
    from kvasir_kube.client import Client, configuration
    from kvasir_kube.state_reader import StateReader

    audit = AuditLog(io.FileIO(sys.stdout.fileno(), "wb", closefd=False)) if options.audit_log else None
    settings = app.PickerSettings(
        directory=options.config_dir,
        bounds=RequestBounds(max_body_bytes=options.max_body_bytes, timeout_s=options.timeout),
        reading_period_s=options.reading_period,
        policy=ChoicePolicy(strategy=options.strategy),
        audit=audit.write if audit is not None else None,
        endpoint_picker=_endpoint_picker(options),
        hold=HoldLimits(
            max_requests=options.max_held_requests,
            max_bytes=options.max_held_bytes,
            max_wait_s=options.hold_timeout,
        ),
        reserved_names=reserved_names(options.reserve_model_name),
    )
    stop = process.stop_event()
    config = await configuration(options.kubeconfig)
    async with Client(config) as cluster, StateReader() as states, contextlib.AsyncExitStack() as stack:
        if audit is not None:
            stack.callback(audit.close)
        objects = InformerSource(cluster, namespace=options.namespace, gateway_namespace=options.gateway_namespace)
        tenants = TenantSource(cluster, options.gateway_namespace)
        await app.run(settings, state_port=state_port, objects=objects, states=states, tenants=tenants, stop=stop)


def _endpoint_picker(options: PickerOptions) -> "EndpointPickerSettings | None":
    from kvasir_gateway.picker.endpoint_picker_server import EndpointPickerSettings

    if not options.endpoint_picker_port:
        return None
    return EndpointPickerSettings(
        address=process.present(options.address),
        port=options.endpoint_picker_port,
        tls_directory=Path(options.endpoint_picker_tls_dir) if options.endpoint_picker_tls_dir else None,
    )


@gateway.command(params=[*click_options(BootstrapOptions)])
def bootstrap(**values: Any) -> None:
    """Write Envoy's bootstrap configuration and exit: the gateway pod's init container."""
    options = parse(BootstrapOptions, values)
    settings = envoy.BootstrapSettings(
        directory=PurePosixPath(options.config_dir),
        address=process.present(options.address),
        port=options.port,
        max_body_bytes=options.max_body_bytes,
        max_connections=options.max_connections,
        max_heap_bytes=options.max_heap_bytes,
        idle_timeout_s=options.idle_timeout,
        tls_directory=PurePosixPath(Path(options.tls_dir).absolute()) if options.tls_dir else None,
        cors_origins=options.cors_origins,
        serves_without_picker=options.picker_failure == "least-request",
    )
    files.write_bootstrap(settings)
    print(f"wrote {options.config_dir / envoy.BOOTSTRAP}")


@gateway.command(params=[*click_options(RelayOptions)])
def relay(**values: Any) -> None:
    """Run the relay beside the picker: it tells clients how they wait, and resumes streams elsewhere."""
    options = parse(RelayOptions, values)
    process.run(_relay(options))


async def _relay(options: RelayOptions) -> None:
    from kvasir_gateway.relay.relay_server import RelayServer

    backends = Path(options.backends_dir) if options.backends_dir else None
    server = RelayServer(options.config_dir, max_body_bytes=options.max_relayed_bytes, backends=backends)
    await server.run(process.stop_event())


@gateway.command(params=[*click_options(DrainOptions)])
def drain(**values: Any) -> None:
    """Take no new requests, and exit when the last one has ended: the preStop hook of the gateway pod."""
    from kvasir_gateway.picker import drain_server

    options = parse(DrainOptions, values)
    try:
        print(asyncio.run(drain_server.request_drain(options.config_dir, on=not options.undo)))
    except OSError as error:
        raise click.ClickException(str(error)) from error


@gateway.command()
@click.argument("file", type=click.File("rb"))
def replay(file: BinaryIO) -> None:
    """Make the recorded choices in FILE again and print why; - reads standard input.

    FILE has lines that `kvasir why request/ID --record` wrote. The same lines print the same bytes.
    """
    for number, line in enumerate(file, 1):
        try:
            click.echo(choice_records.explained(choice_records.decode(line)), nl=False)
        except (msgspec.MsgspecError, ValueError) as error:
            raise click.ClickException(f"line {number} is no record of a choice: {error}") from error


gateway.add_command(simulate)

if __name__ == "__main__":
    gateway()
