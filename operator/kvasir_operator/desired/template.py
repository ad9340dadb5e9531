"""The pod template of a revision: rendered once, stored in the ControllerRevision, applied verbatim from then on."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from kvasir_api import names
from kvasir_api.accelerator import AcceleratorClassSpec, ClassPod
from kvasir_api.flags import arguments, flag
from kvasir_api.hf_config import without_dollars
from kvasir_api.served_names import qualified_name
from kvasir_api.service import InferenceServiceSpec, TopologySpread
from kvasir_kube.kinds import Json
from kvasir_operator.desired import node_group, remote_model
from kvasir_operator.desired.fit import on_accelerator
from kvasir_operator.desired.patches import PatchedTemplate, patched
from kvasir_operator.desired.probes import model_bytes, probes
from kvasir_operator.desired.runtime_image import FOLLOW, wanted_image
from kvasir_operator.desired.source import ModelSource, variable
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import Placement

USER_ID: Final = 65532
GRACE_EXTRA_S: Final = 30
"""Added to the drain timeout, so that the runtime ends by itself before it is killed."""
UNNAMED: Final = "\0revision"
"""Stands for the revision until its name is known; no value of a spec or a class can equal it."""
SCRATCH: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod's own


def pod_labels(service: str, revision: str) -> dict[str, str]:
    """Labels of a runtime pod. Fixed: none comes from the user, so no foreign selector can be made to match."""
    return {
        names.LABEL_NAME: names.IMAGE_RUNTIME,
        names.LABEL_INSTANCE: service,
        names.LABEL_COMPONENT: names.COMPONENT_RUNTIME,
        names.LABEL_PART_OF: names.PART_OF,
        names.LABEL_MANAGED_BY: names.MANAGER,
        **selector(service, revision),
    }


def selector(service: str, revision: str) -> dict[str, str]:
    """Labels by which a workload finds its pods."""
    return {names.LABEL_SERVICE: service, names.LABEL_REVISION: revision, names.LABEL_ROLE: names.ROLE_SERVE}


def speaks_tls(template: Json) -> bool:
    """Whether the ports of pods of this template speak TLS."""
    notes = (template.get("metadata") or {}).get("annotations") or {}
    return bool(notes.get(names.ANNOTATION_TLS) == "true")


def rendered(seen: Observed, placed: Placement, settings: OperatorSettings) -> PatchedTemplate:
    """The whole PodTemplateSpec, patched once, with UNNAMED wherever the revision belongs.

    The revision's name is a hash that includes the patches with an effect, so it is known only afterwards. The template
    fits Pod Security `restricted`, except that a file:// model needs a hostPath, and unless the class's patches say
    otherwise.
    """
    plain = _plain(seen, placed, settings)
    patches = placed.accelerator.pod_patches if placed.accelerator is not None else ()
    return patched(plain, patches) if patches else PatchedTemplate(template=plain)


def named(template: Any, revision: str) -> Any:
    """A rendered template with the name of its revision."""
    if isinstance(template, dict):
        return {name: named(value, revision) for name, value in template.items()}
    if isinstance(template, list):
        return [named(value, revision) for value in template]
    return revision if template == UNNAMED else template


def _plain(seen: Observed, placed: Placement, settings: OperatorSettings) -> Json:
    spec = seen.spec
    where = remote_model.replica_source(seen, settings)
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.drain.timeout_seconds + GRACE_EXTRA_S,
        "securityContext": pod_security() | _cache_group(seen),
        "containers": [_container(seen, placed, where, settings)],
        "volumes": [
            volume(seen, where, settings, shared=True),
            {"name": "scratch", "emptyDir": {}},
            *_keys(seen),
            *_source(seen, settings),
            *remote_model.startup_volume(seen, settings),
            *_ops_keys(settings),
            *_tls(settings),
            *_host_memory(seen),
            *node_group.volumes(seen),
        ],
    }
    of_model = [spec.model.secret_name] if where.kind == "image" and spec.model.secret_name else []
    if pulls := list(dict.fromkeys([*(secret.name for secret in spec.pod.image_pull_secrets), *of_model])):
        pod["imagePullSecrets"] = [{"name": name} for name in pulls]
    metadata: Json = {"labels": {**_of_user(spec.pod.labels), **pod_labels(seen.name, UNNAMED)}}
    if spread := spec.pod.topology_spread:
        pod["topologySpreadConstraints"] = [_spread(one, selector(seen.name, UNNAMED)) for one in spread]
    if claimed := spec.resources.resource_claims:
        pod["resourceClaims"] = [claim.model_dump(by_alias=True, exclude_defaults=True) for claim in claimed]
    of_class = placed.accelerator.pod if placed.accelerator else ClassPod()
    if selected := {**spec.pod.node_selector, **of_class.node_selector}:
        pod["nodeSelector"] = selected
    if borne := [*spec.pod.tolerations, *of_class.tolerations]:
        pod["tolerations"] = [t.model_dump(by_alias=True, exclude_defaults=True) for t in borne]
    if of_class.runtime_class_name:
        pod["runtimeClassName"] = of_class.runtime_class_name
    if of_class.priority_class_name:
        pod["priorityClassName"] = of_class.priority_class_name
    marks = {names.ANNOTATION_TLS: "true"} if settings.pod_tls else {}
    if notes := {**_of_user(spec.pod.annotations), **of_class.annotations, **marks}:
        metadata["annotations"] = notes
    return {"metadata": metadata, "spec": pod}


def exchange_obstacle(spec: InferenceServiceSpec, settings: OperatorSettings) -> str:
    """Why replicas fetch no blocks from one another, empty where they do: those that a processor's second tier holds,
    by keys of the operator. Not where a version of the runtime is pinned, which may be one without the option.
    """
    if not spec.runtime.kv_host_bytes:
        return "spec.runtime.kvHostBytes is 0"
    if on_accelerator(spec):
        return "replicas on accelerators exchange no blocks"
    if spec.runtime_version not in ("", FOLLOW):
        return f"spec.runtimeVersion pins {spec.runtime_version}, which may have no blocks to exchange"
    return "" if settings.signs_calls else "the operator signs no calls (--lease-namespace)"


def _container(seen: Observed, placed: Placement, where: ModelSource, settings: OperatorSettings) -> Json:
    return {
        "name": names.CONTAINER_RUNTIME,
        "image": wanted_image(seen.spec, placed.accelerator, settings),
        "args": list(_args(seen, where, settings)),
        "env": _env(seen, placed.accelerator, settings),
        "ports": _ports(seen, settings),
        "resources": _resources(seen, placed.accelerator, settings),
        **probes(model_bytes(seen, placed), remote_model.download_bytes(seen), tls=settings.pod_tls),
        "volumeMounts": [
            *_model_mounts(seen, where, settings),
            {"name": "scratch", "mountPath": SCRATCH},
            *({"name": key["name"], "mountPath": names.KEYS_MOUNT, "readOnly": True} for key in _keys(seen)),
            *(
                {"name": key["name"], "mountPath": names.OPS_KEYS_MOUNT, "readOnly": True}
                for key in _ops_keys(settings)
            ),
            *({"name": one["name"], "mountPath": names.TLS_MOUNT, "readOnly": True} for one in _tls(settings)),
            *({"name": one["name"], "mountPath": "/dev/shm"} for one in _host_memory(seen)),  # noqa: S108
            *node_group.mounts(seen),
        ],
        # A refusal is one line on stderr; it reaches us as the container's last words.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
    }


def _ports(seen: Observed, settings: OperatorSettings) -> list[Json]:
    found = {names.PORT_HTTP_NAME: names.PORT_HTTP, names.PORT_OPS_NAME: names.PORT_OPS}
    if not exchange_obstacle(seen.spec, settings):
        found[names.PORT_KV_NAME] = names.PORT_KV
    ours = [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in found.items()]
    return [*ours, *node_group.ports(seen)]


def _args(seen: Observed, where: ModelSource, settings: OperatorSettings) -> tuple[str, ...]:
    """Arguments behind the image's entry point `kvasir serve`; nothing that the pod relies on is left to a default."""
    device = "cuda" if on_accelerator(seen.spec) else "cpu"
    given = {
        "served_model_name": seen.served_name,
        "host": f"$({names.ENV_LISTEN_ADDRESS})",
        "port": names.PORT_HTTP,
        "ops_port": names.PORT_OPS,
        "device": device,
        "drain_timeout": seen.spec.drain.timeout_seconds,
        "log_format": "json",
        "pod_revision": UNNAMED,
        **node_group.options(seen),
    }
    if seen.spec.auth.secret_name:
        given["api_key_file"] = names.KEYS_MOUNT
    if settings.signs_calls:
        given["ops_key_file"] = names.OPS_KEYS_MOUNT
    if settings.pod_tls:
        given["tls_dir"] = names.TLS_MOUNT
    if not exchange_obstacle(seen.spec, settings):
        given["kv_transfer_port"] = names.PORT_KV
    flags = [part for name, value in given.items() for part in (flag(name), str(value))]
    others = dict.fromkeys([*seen.spec.model.aliases, qualified_name(seen.namespace, seen.name)])
    aliases = [part for alias in others if alias != seen.served_name for part in (flag("served_model_name"), alias)]
    options = seen.spec.runtime
    options = options.model_copy(update={"hf_overrides": without_dollars(options.hf_overrides)})
    return (where.path, *flags, *aliases, *_tracing(seen, settings), *arguments(options))


def _tracing(seen: Observed, settings: OperatorSettings) -> tuple[str, ...]:
    """Nothing where no requests are traced, or where the installation has no collector for them."""
    percent = seen.spec.observability.trace_sample_percent
    if not percent or not settings.otlp_traces_endpoint:
        return ()
    endpoint = (flag("otlp_traces_endpoint"), settings.otlp_traces_endpoint)
    return (*endpoint, flag("otlp_sample_percent"), str(percent))


def _env(seen: Observed, accelerator: AcceleratorClassSpec | None, settings: OperatorSettings) -> list[Json]:
    env: list[Json] = [
        {"name": names.ENV_LISTEN_ADDRESS, "value": names.ALL_ADDRESSES},
        {"name": "HOME", "value": SCRATCH},  # the root file system is read-only; compilers cache at home
        variable(seen.spec.model.uri),
        {"name": names.ENV_SERVICE, "value": qualified_name(seen.namespace, seen.name)},
        *remote_model.serving_variables(seen, settings),
        *node_group.variables(seen),
    ]
    if not on_accelerator(seen.spec):
        limit = {"resourceFieldRef": {"resource": "limits.memory"}}
        env.append({"name": names.ENV_MEMORY_LIMIT, "valueFrom": limit})
        env.append({"name": "OMP_NUM_THREADS", "value": str(cores(seen.spec.resources.cpu))})
    ours = {variable["name"] for variable in env}
    of_class = accelerator.pod.env if accelerator else ()
    return [*env, *(v.model_dump() for v in of_class if v.name not in ours)]


def _resources(seen: Observed, accelerator: AcceleratorClassSpec | None, settings: OperatorSettings) -> Json:
    asked = seen.spec.resources
    limits: Json = {"memory": asked.memory}
    if asked.accelerator.count:
        name = accelerator.resource_name if accelerator else asked.accelerator.resource_name
        limits[name] = str(asked.accelerator.count)
    requests: Json = {"cpu": asked.cpu, "memory": asked.memory}
    if disk := remote_model.cache_bytes(seen, settings):
        requests["ephemeral-storage"] = _mebibytes(disk)  # or it is placed where its model has no room
    given: Json = {"requests": requests, "limits": limits}
    if asked.resource_claims:
        given["claims"] = [{"name": claim.name} for claim in asked.resource_claims]
    return given


def _of_user(marks: Mapping[str, str]) -> Json:
    """Labels or annotations of the service's author, under a prefix that nothing else reads."""
    return {f"{names.USER_PREFIX}{name}": value for name, value in marks.items()}


def _spread(wish: TopologySpread, replicas: Json) -> Json:
    return {**wish.model_dump(by_alias=True), "labelSelector": {"matchLabels": replicas}}


def owner(seen: Observed) -> Json:
    """The service as the one that every child of it belongs to."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": seen.name,
        "uid": seen.uid,
        "controller": True,
        # True would need the right to update the owner's finalizers where that admission is on.
        "blockOwnerDeletion": False,
    }


def pod_security() -> Json:
    """Of every pod that we make: an ordinary user, the usual system calls."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Json:
    """Of every container that we make: no capability, nothing to write but its volumes."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}


def _keys(seen: Observed) -> list[Json]:
    """The Secret with the keys of clients, if there is one. The kubelet reads it, and writes it again when it changes.

    Optional: without it a pod would wait without a message; so the runtime reports what is missing and rejects clients.
    """
    secret = seen.spec.auth.secret_name
    return [{"name": "keys", "secret": {"secretName": secret, "optional": True}}] if secret else []


def _ops_keys(settings: OperatorSettings) -> list[Json]:
    """The operator's public keys, from an annotation that it keeps up to date: a change needs neither a right to write
    ConfigMaps nor new pods."""
    if not settings.signs_calls:
        return []
    path = f"metadata.annotations['{names.ANNOTATION_OPS_KEYS}']"
    item = {"path": "public", "fieldRef": {"fieldPath": path}}
    return [{"name": names.OPS_KEYS_VOLUME, "downwardAPI": {"items": [item]}}]


def _tls(settings: OperatorSettings) -> list[Json]:
    """The certificate that pods of the namespace share. The operator has written it before there is a pod."""
    return [{"name": "tls", "secret": {"secretName": names.POD_TLS_SECRET}}] if settings.pod_tls else []


def _host_memory(seen: Observed) -> list[Json]:
    """Through which devices exchange that cannot reach one another: without it a container has 64 MiB."""
    several = on_accelerator(seen.spec) and seen.spec.runtime.ranks > 1
    return [{"name": "shm", "emptyDir": {"medium": "Memory"}}] if several else []


def _source(seen: Observed, settings: OperatorSettings) -> list[Json]:
    """A replica that fetches nothing by itself reaches no source and has no credentials of one."""
    if remote_model.node_cache(seen, settings) or remote_model.is_mounted(seen, settings):
        return []
    return remote_model.secret(seen.spec.model.secret_name)


def _model_mounts(seen: Observed, where: ModelSource, settings: OperatorSettings) -> list[Json]:
    """Those of a replica."""
    start = [
        {"name": one["name"], "mountPath": names.STARTUP_CACHE_MOUNT}
        for one in remote_model.startup_volume(seen, settings)
    ]
    writes = where.kind == "remote" and not start
    return [*model_mounts(_source(seen, settings), writes=writes), *start]


def model_mounts(source: Sequence[Json], *, writes: bool) -> list[Json]:
    """Of the model, which a pod writes only where it fetches it, and of the source's volumes."""
    model: Json = {"name": "model", "mountPath": names.MODEL_MOUNT}
    return [
        model if writes else {**model, "readOnly": True},
        *({"name": one["name"], "mountPath": names.SOURCE_MOUNT, "readOnly": True} for one in source),
    ]


def _mebibytes(size: int) -> str:
    return f"{-(-size // 2**20)}Mi"


def _cache_group(seen: Observed) -> Json:
    """A fresh volume belongs to root; the kubelet gives it to this group, once."""
    return {"fsGroup": USER_ID, "fsGroupChangePolicy": "OnRootMismatch"} if seen.spec.model.cache_claim else {}


def volume(seen: Observed, where: ModelSource, settings: OperatorSettings, *, shared: bool = False) -> Json:
    """The model, read-only where the kind of volume allows it. shared: with what other pods have fetched."""
    claim, directory = seen.spec.model.cache_claim, remote_model.node_cache(seen, settings)
    if where.kind == "remote" and shared and claim:
        return {"name": "model", "persistentVolumeClaim": {"claimName": claim}}
    if where.kind == "remote" and shared and directory:
        return {"name": "model", "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}
    if where.kind == "remote":
        disk = remote_model.cache_bytes(seen, settings)
        return {"name": "model", "emptyDir": {"sizeLimit": _mebibytes(disk)} if disk else {}}
    if where.kind == "image":
        return {"name": "model", "image": {"reference": where.volume, "pullPolicy": "IfNotPresent"}}
    if where.kind == "pvc":
        return {"name": "model", "persistentVolumeClaim": {"claimName": where.volume, "readOnly": True}}
    return {"name": "model", "hostPath": {"path": where.volume, "type": "Directory"}}


def cores(quantity: str) -> int:
    """Whole threads for a CPU quantity such as 500m or 3, rounded up, at least one."""
    if quantity.endswith("m"):
        value = Decimal(quantity[:-1]) / 1000
    else:
        value = Decimal(quantity.rstrip("kKMGTi") or "1")
    return max(1, int(value.to_integral_value(ROUND_CEILING)))
