"""`kvasir why`: why a service has so many replicas, why a pod is not ready, or why a request went where it did."""

import asyncio
import json
from collections.abc import Iterable

import click

from kvasir_api import names
from kvasir_kube import gateway_pods
from kvasir_kube.client import Client, configuration, context_namespace
from kvasir_kube.errors import KubeError, NotFoundError
from kvasir_kube.kinds import EVENT, INFERENCE_SERVICE, POD
from kvasir_operator.status import explanation

REQUEST = "request"
SERVICES, PODS = ("service", "svc", "isvc", "inferenceservice"), ("pod", "po")


@click.command()
@click.argument("target", metavar="service/NAME|pod/NAME|request/ID")
@click.option("-n", "--namespace", default="", help="Where the object is. Default: the context's.", metavar="NAME")
@click.option("--kubeconfig", default="", help="Default: $KUBECONFIG, or the pod's service account.", metavar="FILE")
@click.option("--gateway-namespace", default=names.SYSTEM_NAMESPACE, show_default=True, help="Where the gateways are.")
@click.option("--record", is_flag=True, help="Of a request: a line for `kvasir gateway replay`.")
def why(target: str, *, namespace: str, kubeconfig: str, gateway_namespace: str, record: bool) -> None:
    """Prints the arithmetic of the autoscaler's last decisions of a service, what a pod waits for, or what each replica
    would have cost a request. ID is the `x-request-id` of its answer; gateways remember the last few thousand."""
    kind, _, name = target.partition("/")
    if kind not in (*SERVICES, *PODS, REQUEST) or not name:
        raise click.UsageError(f"{target}: expected service/NAME, pod/NAME or request/ID")
    try:
        if kind == REQUEST:
            click.echo(asyncio.run(_choice(name, gateway_namespace, kubeconfig, record=record)), nl=False)
            return
        namespace = namespace or context_namespace(kubeconfig)
        lines = asyncio.run(_lines(kind, name, namespace=namespace, kubeconfig=kubeconfig))
    except NotFoundError as error:
        raise click.ClickException(f"there is no {kind} {namespace}/{name}") from error
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    for line in lines:
        click.echo(line)


async def _choice(request_id: str, namespace: str, kubeconfig: str, *, record: bool) -> str:
    async with Client(await configuration(kubeconfig)) as cluster:
        found = await gateway_pods.choice_of(cluster, namespace, request_id)
    if found is None:
        raise click.ClickException(f"no gateway of {namespace} remembers a choice for the request {request_id}")
    return json.dumps(found["record"], separators=(",", ":")) + "\n" if record else str(found["explanation"])


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
