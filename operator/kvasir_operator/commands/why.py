"""`kvasir why`: why a service has so many replicas, or why a pod is not ready."""

import asyncio
from collections.abc import Iterable

import click

from kvasir_kube.client import Client, configuration
from kvasir_kube.errors import KubeError, NotFoundError
from kvasir_kube.kinds import EVENT, INFERENCE_SERVICE, POD
from kvasir_operator.status import explanation

SERVICES, PODS = ("service", "svc", "isvc", "inferenceservice"), ("pod", "po")


@click.command()
@click.argument("target", metavar="service/NAME|pod/NAME")
@click.option("-n", "--namespace", default="default", show_default=True, help="Where the object is.")
@click.option("--kubeconfig", default="", help="Default: $KUBECONFIG, or the pod's service account.", metavar="FILE")
def why(target: str, *, namespace: str, kubeconfig: str) -> None:
    """Prints the arithmetic of the autoscaler's last decisions of a service, or what a pod waits for."""
    kind, _, name = target.partition("/")
    if kind not in (*SERVICES, *PODS) or not name:
        raise click.UsageError(f"{target}: expected service/NAME or pod/NAME")
    try:
        lines = asyncio.run(_lines(kind, name, namespace=namespace, kubeconfig=kubeconfig))
    except NotFoundError as error:
        raise click.ClickException(f"there is no {kind} {namespace}/{name}") from error
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    for line in lines:
        click.echo(line)


async def _lines(kind: str, name: str, *, namespace: str, kubeconfig: str) -> Iterable[str]:
    async with Client(await configuration(kubeconfig)) as cluster:
        if kind in SERVICES:
            return list(explanation.of_service(await cluster.get(INFERENCE_SERVICE, namespace, name)))
        pod = await cluster.get(POD, namespace, name)
        events = [e for e in (await cluster.list(EVENT, namespace)).items if _about(e, pod["metadata"]["uid"])]
        return list(explanation.of_pod(pod, events))


def _about(event: dict[str, object], uid: str) -> bool:
    regarding = event.get("regarding")
    return isinstance(regarding, dict) and regarding.get("uid") == uid
