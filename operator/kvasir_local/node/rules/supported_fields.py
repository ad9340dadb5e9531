"""The table of pod fields: what is honoured, what is relaxed and why. A field that is absent here is refused.

Read by `fields.findings`; printed by `python -m kvasir_local.node --relaxed` for people. Only data lives here.
"""

from collections.abc import Mapping
from typing import Final

from kvasir_local.node.rules.field_support import Each, Honoured, OneOf, Relaxed, Rule

YES: Final = Honoured()
NODE_USER: Final = Relaxed("processes run as the user of the node process; file ownership is not changed")
NO_CGROUP: Final = Relaxed("limits of CPU and memory are not enforced: there is no cgroup of one's own; GPUs are")
NO_SECCOMP: Final = Relaxed("no seccomp or AppArmor profile is loaded")
NO_DNS: Final = Relaxed("names resolve as on the machine; names of Services do not resolve")
NO_PULL: Final = Relaxed("images are not pulled: a name maps to a local program")
CONTROL_PLANE: Final = Honoured()  # by the scheduler and the controllers; there is nothing for a node to do

HTTP_GET: Final[Mapping[str, Rule]] = {
    "path": YES,
    "port": YES,
    "host": YES,
    "scheme": OneOf(("HTTP", "HTTPS")),
    "httpHeaders": YES,
}
EXEC: Final[Mapping[str, Rule]] = {"command": YES}
TCP: Final[Mapping[str, Rule]] = {"port": YES, "host": YES}
PROBE: Final[Mapping[str, Rule]] = {
    "httpGet": HTTP_GET,
    "tcpSocket": TCP,
    "exec": EXEC,
    "initialDelaySeconds": YES,
    "periodSeconds": YES,
    "timeoutSeconds": YES,
    "successThreshold": YES,
    "failureThreshold": YES,
    "terminationGracePeriodSeconds": YES,
}
HOOK: Final[Mapping[str, Rule]] = {"exec": EXEC, "httpGet": HTTP_GET, "sleep": {"seconds": YES}}
FIELD_REF: Final[Mapping[str, Rule]] = {"apiVersion": OneOf(("v1",)), "fieldPath": YES}
KEY_REF: Final[Mapping[str, Rule]] = {"name": YES, "key": YES, "optional": YES}
RESOURCE_REF: Final[Mapping[str, Rule]] = {"containerName": YES, "resource": YES, "divisor": YES}
ENV: Final[Mapping[str, Rule]] = {
    "name": YES,
    "value": YES,
    "valueFrom": {
        "fieldRef": FIELD_REF,
        "resourceFieldRef": RESOURCE_REF,
        "configMapKeyRef": KEY_REF,
        "secretKeyRef": KEY_REF,
    },
}
SOURCE_REF: Final[Mapping[str, Rule]] = {"name": YES, "optional": YES}
ENV_FROM: Final[Mapping[str, Rule]] = {"prefix": YES, "configMapRef": SOURCE_REF, "secretRef": SOURCE_REF}
MOUNT: Final[Mapping[str, Rule]] = {
    "name": YES,
    "mountPath": YES,
    "subPath": YES,
    "readOnly": YES,
    "recursiveReadOnly": OneOf(("Disabled",)),
    "mountPropagation": OneOf(("None",)),
}
CONTAINER_SECURITY: Final[Mapping[str, Rule]] = {
    "allowPrivilegeEscalation": YES,
    "capabilities": {"drop": YES, "add": Each(OneOf(("NET_BIND_SERVICE",)))},
    "privileged": OneOf((False,)),
    "readOnlyRootFilesystem": YES,
    "runAsGroup": NODE_USER,
    "runAsNonRoot": NODE_USER,
    "runAsUser": NODE_USER,
    "seccompProfile": NO_SECCOMP,
    "appArmorProfile": NO_SECCOMP,
    "procMount": OneOf(("Default",)),
}
CONTAINER: Final[Mapping[str, Rule]] = {
    "name": YES,
    "image": YES,
    "imagePullPolicy": NO_PULL,
    "command": YES,
    "args": YES,
    "workingDir": YES,
    "env": Each(ENV),
    "envFrom": Each(ENV_FROM),
    "ports": Each(
        {"name": YES, "containerPort": YES, "protocol": OneOf(("TCP", "UDP")), "hostPort": YES, "hostIP": OneOf(("",))}
    ),
    "resources": {"requests": YES, "limits": NO_CGROUP},
    "volumeMounts": Each(MOUNT),
    "startupProbe": PROBE,
    "readinessProbe": PROBE,
    "livenessProbe": PROBE,
    "lifecycle": {"preStop": HOOK},
    "securityContext": CONTAINER_SECURITY,
    "terminationMessagePath": YES,
    "terminationMessagePolicy": OneOf(("File", "FallbackToLogsOnError")),
}
INIT_CONTAINER: Final[Mapping[str, Rule]] = {
    name: rule for name, rule in CONTAINER.items() if not name.endswith("Probe") and name != "lifecycle"
}
ITEMS: Final = Each({"key": YES, "path": YES, "mode": YES})
DOWNWARD: Final[Mapping[str, Rule]] = {
    "fieldRef": FIELD_REF,
    "resourceFieldRef": RESOURCE_REF,
    "path": YES,
    "mode": YES,
}
PROJECTION: Final[Mapping[str, Rule]] = {
    "configMap": {"name": YES, "items": ITEMS, "optional": YES},
    "secret": {"name": YES, "items": ITEMS, "optional": YES},
    "downwardAPI": {"items": Each(DOWNWARD)},
    "serviceAccountToken": {"audience": YES, "expirationSeconds": YES, "path": YES},
}
VOLUME: Final[Mapping[str, Rule]] = {
    "name": YES,
    "emptyDir": {
        "medium": Relaxed("the directory is on the node's disk, whatever the medium"),
        "sizeLimit": Relaxed("the size of an emptyDir is not limited"),
    },
    "configMap": {"name": YES, "items": ITEMS, "optional": YES, "defaultMode": YES},
    "secret": {"secretName": YES, "items": ITEMS, "optional": YES, "defaultMode": YES},
    "downwardAPI": {"items": Each(DOWNWARD), "defaultMode": YES},
    "projected": {"sources": Each(PROJECTION), "defaultMode": YES},
    "hostPath": {"path": YES, "type": OneOf(("", "Directory", "DirectoryOrCreate", "File", "FileOrCreate"))},
    "persistentVolumeClaim": {"claimName": YES, "readOnly": YES},
}
POD_SECURITY: Final[Mapping[str, Rule]] = {
    "fsGroup": NODE_USER,
    "fsGroupChangePolicy": NODE_USER,
    "runAsGroup": NODE_USER,
    "runAsNonRoot": NODE_USER,
    "runAsUser": NODE_USER,
    "supplementalGroups": NODE_USER,
    "supplementalGroupsPolicy": NODE_USER,
    "seccompProfile": NO_SECCOMP,
    "appArmorProfile": NO_SECCOMP,
}
POD: Final[Mapping[str, Rule]] = {
    "containers": Each(CONTAINER),
    "initContainers": Each(INIT_CONTAINER),
    "volumes": Each(VOLUME),
    "restartPolicy": OneOf(("Always", "OnFailure", "Never")),
    "terminationGracePeriodSeconds": YES,
    "activeDeadlineSeconds": YES,
    "hostNetwork": YES,
    "hostname": YES,
    "subdomain": NO_DNS,
    "os": {"name": OneOf(("linux",))},
    "nodeName": YES,
    "serviceAccountName": YES,
    "serviceAccount": YES,
    "automountServiceAccountToken": YES,
    "enableServiceLinks": Relaxed("only the API server's address is injected; other Services have no address here"),
    "securityContext": POD_SECURITY,
    "dnsPolicy": NO_DNS,
    "dnsConfig": NO_DNS,
    "imagePullSecrets": NO_PULL,
    "nodeSelector": CONTROL_PLANE,
    "affinity": CONTROL_PLANE,
    "tolerations": CONTROL_PLANE,
    "topologySpreadConstraints": CONTROL_PLANE,
    "schedulerName": CONTROL_PLANE,
    "priority": CONTROL_PLANE,
    "priorityClassName": CONTROL_PLANE,
    "preemptionPolicy": CONTROL_PLANE,
}


def relaxed(table: Mapping[str, Rule] = POD, path: str = "spec") -> list[tuple[str, str]]:
    """Every relaxed field path with its reason, for people to read."""
    lines: list[tuple[str, str]] = []
    for name, rule in table.items():
        here = f"{path}.{name}"
        inner = rule.rule if isinstance(rule, Each) else rule
        if isinstance(inner, Relaxed):
            lines.append((here, inner.why))
        elif isinstance(inner, Mapping):
            lines.extend(relaxed(inner, here + ("[]" if isinstance(rule, Each) else "")))
    return lines
