"""The command `kvasir gateway`: the endpoint picker, and the bootstrap configuration of Envoy.

Both run in the gateway's pod, the bootstrap as its init container; they and Envoy share one directory.
"""

import asyncio
import logging
import signal
import sys
from pathlib import Path, PurePosixPath

import aiohttp
import click

from kvasir_api import names
from kvasir_gateway.envoy import bootstrap as envoy
from kvasir_gateway.envoy import files
from kvasir_gateway.picker import app
from kvasir_gateway.picker.sources import InformerSource
from kvasir_kube.client import Client, configuration
from kvasir_kube.errors import KubeError
from kvasir_kube.state_reader import StateReader

DIRECTORY = "/run/kvasir-gateway"
DIRECTORY_OPTION = click.option(
    "--config-dir",
    default=DIRECTORY,
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory shared with Envoy: its configuration and the sockets between the two.",
)
ADDRESS_OPTION = click.option("--address", default="127.0.0.1", show_default=True, help="IP address to listen on.")
BODY_OPTION = click.option(
    "--max-body-bytes",
    default=8 << 20,
    show_default=True,
    type=click.IntRange(1 << 10, 1 << 28),
    help="Largest request body; a larger one is answered with 413.",
)
PORT = click.IntRange(1, 65535)


@click.group(invoke_without_command=True)
@DIRECTORY_OPTION
@ADDRESS_OPTION
@BODY_OPTION
@click.option("--state-port", default=names.PORT_GATEWAY_STATE, show_default=True, type=PORT, help="Port of /state.")
@click.option("--namespace", default="", help="Serve the services of this namespace only; default: of all.")
@click.option("--kubeconfig", default="", help="How to reach the API server; default: as the pod's service account.")
@click.option(
    "--reading-period",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0.05, 60),
    help="Every how many seconds the pods' /state is read.",
)
@click.pass_context
def gateway(
    context: click.Context,
    config_dir: Path,
    address: str,
    max_body_bytes: int,
    state_port: int,
    namespace: str,
    kubeconfig: str,
    reading_period: float,
) -> None:
    """Run the endpoint picker beside Envoy: it chooses the replica of each request."""
    if context.invoked_subcommand:
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = app.PickerSettings(
        directory=config_dir,
        address=address,
        state_port=state_port,
        max_body_bytes=max_body_bytes,
        reading_period_s=reading_period,
    )
    try:
        asyncio.run(_run(settings, namespace=namespace, kubeconfig=kubeconfig))
    except (KubeError, OSError) as error:
        print(f"{names.REFUSAL_PREFIX}{error}", file=sys.stderr)
        sys.exit(names.EXIT_REFUSED)


async def _run(settings: app.PickerSettings, *, namespace: str, kubeconfig: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    config = await configuration(kubeconfig)
    async with Client(config) as cluster, aiohttp.ClientSession() as session:
        await app.run(
            settings, objects=InformerSource(cluster, namespace=namespace), states=StateReader(session), stop=stop
        )


@gateway.command()
@DIRECTORY_OPTION
@ADDRESS_OPTION
@BODY_OPTION
@click.option("--port", default=names.PORT_GATEWAY, show_default=True, type=PORT, help="Port for clients.")
@click.option(
    "--idle-timeout",
    default=3600,
    show_default=True,
    type=click.IntRange(1, 86_400),
    help="Seconds of silence after which a stream is given up.",
)
@click.option(
    "--max-connections",
    default=20_000,
    show_default=True,
    type=click.IntRange(1, 1 << 20),
    help="Clients' connections at once; further ones are refused.",
)
def bootstrap(
    config_dir: Path, address: str, max_body_bytes: int, port: int, idle_timeout: int, max_connections: int
) -> None:
    """Write Envoy's bootstrap configuration and exit: the gateway pod's init container."""
    settings = envoy.BootstrapSettings(
        directory=PurePosixPath(config_dir),
        address=address,
        port=port,
        max_body_bytes=max_body_bytes,
        max_connections=max_connections,
        idle_timeout_s=idle_timeout,
    )
    files.write_bootstrap(settings)
    print(f"wrote {config_dir / envoy.BOOTSTRAP}")


if __name__ == "__main__":
    gateway()
