"""Which pods are the installation's gateways, and where their state is. The operator and the gateways read it."""

from ipaddress import ip_address
from typing import Final
from urllib.parse import quote, urlsplit

import aiohttp

from kvasir_api import names
from kvasir_kube.client import Client
from kvasir_kube.errors import KubeError, NotFoundError
from kvasir_kube.kinds import POD, Json, controller_uid, has_ended, key, labels
from kvasir_kube.state_reader import url

STATE_PORT: Final = "state"
SELECTOR: Final = f"{names.LABEL_NAME}={names.GATEWAY}"


def is_gateway(pod: Json, namespace: str) -> bool:
    """Whether a pod is one of the installation's gateways: of its namespace and its ServiceAccount, made by a
    controller. A label alone can be written by all who may create a pod somewhere."""
    account = (pod.get("spec") or {}).get("serviceAccountName")
    marked = labels(pod).get(names.LABEL_NAME) == names.GATEWAY and account == names.GATEWAY
    return marked and key(pod)[0] == namespace and bool(controller_uid(pod))


def state_url(pod: Json) -> str:
    """Base URL of the state port of a gateway's pod; empty while it has no address, and once it is over, when its
    status still has the address: evicted pods stay listed for long."""
    address = (pod.get("status") or {}).get("podIP")
    if not address or has_ended(pod):
        return ""
    ports = [p for c in pod["spec"].get("containers") or () for p in c.get("ports") or ()]
    port = next((p["containerPort"] for p in ports if p.get("name") == STATE_PORT), names.PORT_GATEWAY_STATE)
    return url(address, port, "")


async def choice_of(cluster: Client, namespace: str, request_id: str) -> Json | None:
    """The record and the explanation of a request's choice, from the gateway that made it; None where none knows it.

    Through the API server, as its rules for `pods/proxy` allow, which does not reach loopback: there directly. Raises
    KubeError where no gateway answers.
    """
    listed = (await cluster.list(POD, namespace, SELECTOR)).items
    found = [pod for pod in listed if is_gateway(pod, namespace) and state_url(pod)]
    if not found:
        raise KubeError(f"there is no gateway in the namespace {namespace}")
    path = f"{names.PATH_CHOICES}/{quote(request_id, safe='')}"
    failed: KubeError | None = None
    for pod in found:
        base = urlsplit(state_url(pod))
        try:
            if ip_address(base.hostname or "").is_loopback:
                return await _direct(base.geturl() + path)
            return await cluster.read_pod(pod, base.port or names.PORT_GATEWAY_STATE, path)
        except NotFoundError:
            continue
        except KubeError as error:
            failed = error
    if failed is not None:
        raise failed
    return None


async def _direct(url: str) -> Json:
    timeout = aiohttp.ClientTimeout(total=5.0)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, allow_redirects=False) as answer:
            document: Json = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise KubeError(f"{url}: {error}") from error
    if answer.status == 404:
        raise NotFoundError(str(document.get("message")))
    return document
