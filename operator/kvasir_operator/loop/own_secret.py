"""Reads a Secret that the operator makes in a namespace, and takes no other's for its own."""

from kvasir_api import names
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, NotFoundError
from kvasir_kube.kinds import SECRET, Json, labels


async def own_secret(cluster: Cluster, namespace: str, name: str, what: str) -> Json:
    """The Secret; empty where there is none. what: which one has the name, for people.

    Raises KubeError, ConflictError where it is not the operator's.
    """
    try:
        found = await cluster.get(SECRET, namespace, name)
    except NotFoundError:
        return {}
    if labels(found).get(names.LABEL_MANAGED_BY) != names.MANAGER:
        raise ConflictError(
            f"Secret {namespace}/{name}, the name of the one {what}, is not the operator's: delete it", status=409
        )
    return found
