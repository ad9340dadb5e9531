"""The Kubernetes kinds that Kvasir uses and their API paths; used by every shell that names an object.

Objects themselves stay plain JSON dictionaries: the generated models of the client library cost memory and time that a
level-triggered reader of a few fields does not need.
"""

import operator
import sys
from dataclasses import dataclass
from typing import Any, Final

from kvasir_api import names

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One resource of the API. group is empty for the core group."""

    group: str = ""
    version: str = "v1"
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What an object of this kind carries as apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of a collection over all namespaces or in one, of one object, or of its subresource."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


INFERENCE_SERVICE: Final = Kind(group=names.GROUP, version=names.VERSION, kind=names.KIND, plural=names.PLURAL)
ACCELERATOR_CLASS: Final = Kind(
    group=names.GROUP,
    version=names.VERSION,
    kind=names.ACCELERATOR_KIND,
    plural=names.ACCELERATOR_PLURAL,
    namespaced=False,
)
TENANT: Final = Kind(group=names.GROUP, version=names.VERSION, kind=names.TENANT_KIND, plural=names.TENANT_PLURAL)
MODEL_ROUTE: Final = Kind(group=names.GROUP, version=names.VERSION, kind=names.ROUTE_KIND, plural=names.ROUTE_PLURAL)
DEPLOYMENT: Final = Kind(group="apps", kind="Deployment", plural="deployments")
REPLICA_SET: Final = Kind(group="apps", kind="ReplicaSet", plural="replicasets")
STATEFUL_SET: Final = Kind(group="apps", kind="StatefulSet", plural="statefulsets")
CONTROLLER_REVISION: Final = Kind(group="apps", kind="ControllerRevision", plural="controllerrevisions")
POD: Final = Kind(kind="Pod", plural="pods")
SERVICE: Final = Kind(kind="Service", plural="services")
DISRUPTION_BUDGET: Final = Kind(group="policy", kind="PodDisruptionBudget", plural="poddisruptionbudgets")
NETWORK_POLICY: Final = Kind(group="networking.k8s.io", kind="NetworkPolicy", plural="networkpolicies")
CLAIM: Final = Kind(kind="PersistentVolumeClaim", plural="persistentvolumeclaims")
SECRET: Final = Kind(kind="Secret", plural="secrets")
LEASE: Final = Kind(group="coordination.k8s.io", kind="Lease", plural="leases")
EVENT: Final = Kind(group="events.k8s.io", kind="Event", plural="events")
NODE: Final = Kind(kind="Node", plural="nodes", namespaced=False)
NAMESPACE: Final = Kind(kind="Namespace", plural="namespaces", namespaced=False)


def key(obj: Json) -> Key:
    """Namespace (empty for cluster-wide objects) and name."""
    metadata = obj.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def uid(obj: Json) -> str:
    """The object's uid, empty when it has none yet."""
    return str((obj.get("metadata") or {}).get("uid") or "")


def controller_uid(obj: Json, kind: Kind | None = None) -> str:
    """uid of the object that controls this one, empty without a controller, or with one of another kind or group."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    owner: Json = next((owner for owner in owners if owner.get("controller")), {})
    named = str(owner.get("apiVersion")).rpartition("/")[0], owner.get("kind")
    return str(owner.get("uid") or "") if kind is None or named == (kind.group, kind.kind) else ""


def has_ended(pod: Json) -> bool:
    """Whether a pod is over; its status may still have its address."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def labels(obj: Json) -> dict[str, str]:
    """The object's labels; never None."""
    return (obj.get("metadata") or {}).get("labels") or {}


def annotations(obj: Json) -> dict[str, str]:
    """The object's annotations; never None."""
    return (obj.get("metadata") or {}).get("annotations") or {}


def resource_version(obj: Json) -> int:
    """The resourceVersion as a number, -1 when it is absent or opaque.

    Kubernetes declares it comparable since 1.35; with etcd it always was.
    """
    text = str((obj.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isdigit() else -1


def strip_managed_fields(obj: Json) -> Json:
    """The object without managedFields and the last-applied annotation: most of its bytes, never read here."""
    metadata = dict(obj.get("metadata") or {})
    metadata.pop("managedFields", None)
    notes = metadata.get("annotations")
    if notes and "kubectl.kubernetes.io/last-applied-configuration" in notes:
        metadata["annotations"] = {
            k: v for k, v in notes.items() if k != "kubectl.kubernetes.io/last-applied-configuration"
        }
    return {**obj, "metadata": metadata}


SHARED_LENGTH: Final = 64


def with_shared_parts(node: Any, like: Any = None) -> Any:
    """A copy of a JSON value that is made of the parts of another one where the two are equal, and in which equal names
    and short texts are one object. like: such as the version before, or another object of the kind.

    A decoder makes new objects for each document; most of a pod is the same in all pods of a revision. The result
    shares dicts and lists with like, so that neither may be changed in place.
    """
    if isinstance(node, dict):
        other = like if isinstance(like, dict) else {}
        made = {sys.intern(name): with_shared_parts(value, other.get(name)) for name, value in node.items()}
        same = len(made) == len(other) and all(name in other and value is other[name] for name, value in made.items())
        return other if same and made else made
    if isinstance(node, list):
        others = like if isinstance(like, list) else []
        parts = [with_shared_parts(item, others[i] if i < len(others) else None) for i, item in enumerate(node)]
        same = len(parts) == len(others) and all(map(operator.is_, parts, others))
        return others if same and parts else parts
    if isinstance(node, str):
        return like if node == like else sys.intern(node) if len(node) <= SHARED_LENGTH else node
    return like if type(node) is type(like) and node == like else node
