"""A pod of a service that serves nothing: what those that look at its model and those that fetch it have in common."""

from collections.abc import Sequence
from typing import Any

from kvasir_api import names
from kvasir_kube.kinds import Json
from kvasir_operator.desired.template import SCRATCH, container_security, owner, pod_security
from kvasir_operator.observed.service import Observed


def helper_pod(
    seen: Observed, name: str, component: str, *, label: str, container: Json, volumes: Sequence[Json], **spec: Any
) -> Json:
    """label: by which the operator finds it. container: its command, environment, resources and mounts. spec: the rest
    of the pod's; None leaves a field out."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": seen.namespace,
            "labels": {
                names.LABEL_NAME: names.IMAGE_RUNTIME,
                names.LABEL_INSTANCE: seen.name,
                names.LABEL_COMPONENT: component,
                names.LABEL_PART_OF: names.PART_OF,
                names.LABEL_MANAGED_BY: names.MANAGER,
                label: seen.name,
            },
            "ownerReferences": [owner(seen)],
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "containers": [{"name": component, **container, **_ends_with_words()}],
            "volumes": [*volumes, {"name": "scratch", "emptyDir": {}}],
            **{field: value for field, value in spec.items() if value},
        },
    }


def with_scratch(mounts: Sequence[Json]) -> list[Json]:
    """Mounts of the container and the only place where it may write beside them."""
    return [*mounts, {"name": "scratch", "mountPath": SCRATCH}]


def _ends_with_words() -> Json:
    return {
        "terminationMessagePath": names.PATH_TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
    }
