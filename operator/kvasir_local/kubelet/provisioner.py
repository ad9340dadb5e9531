"""The provisioner of a cluster with kubelets: directories of this machine for claims of class `standard`.

A process of its own, `python -m kvasir_local.kubelet.provisioner`; process nodes do it themselves. Every node is this
machine, so a directory is where its claim is mounted, whichever node that is.
"""

import asyncio
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click

from kvasir_kube.client import Client, configuration
from kvasir_local.node.event_recorder import EventRecorder
from kvasir_local.node.object_cache import ObjectCache
from kvasir_local.node.provisioner import Provisioner


@click.command()
@click.option("--kubeconfig", required=True, help="Of an account that may write volumes and storage classes.")
@click.option(
    "--directory", required=True, type=click.Path(path_type=Path), help="Where the directories of claims lie."
)
def main(kubeconfig: str, directory: Path) -> None:
    """Make and delete directories for claims."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    asyncio.run(_run(kubeconfig, directory.absolute()))


async def _run(kubeconfig: str, directory: Path) -> None:
    async with Client(await configuration(kubeconfig)) as cluster:
        provisioner: Provisioner

        def changed(_: str) -> None:
            provisioner.wake()

        cache, recorder = ObjectCache(cluster, changed), EventRecorder(cluster, "provisioner")
        provisioner = Provisioner(cluster, cache, recorder, directory)
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        loops = [informer.run() for informer in cache.informers]
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*loops, recorder.run(), provisioner.run())


if __name__ == "__main__":
    main()
