"""Which pods fetch models into the caches of nodes: one for each node where a replica waits for its model, and some on
nodes where one may come.

Called by the reconciler. Replicas only read the cache, see `template`. A fetch that fails is repeated by the kubelet in
its pod, and goes on where it was.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvasir_api import model_uri, names
from kvasir_api.speculation import draft_model
from kvasir_kube.kinds import Json
from kvasir_operator.desired import remote_model
from kvasir_operator.desired.helper_pod import helper_pod, with_scratch
from kvasir_operator.desired.probes import SLOWEST_DOWNLOAD
from kvasir_operator.desired.source import variable
from kvasir_operator.desired.template import SCRATCH, model_mounts
from kvasir_operator.observed.model_pod import ModelPod
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed, Revision
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import FetchPlan, Resolved

AGAIN_S: Final = 30.0
"""A pod that its node did not take, or took away, is replaced after so long."""
LACKS_S: Final = 5.0
"""A replica that runs for so long and still waits lacks what was fetched before it came: it had to give way since."""
LOOK_AGAIN_S: Final = 120.0
"""So often it is looked for nodes that have come since, where the model is to be before a replica."""
LEAST_S: Final = 1800
UNKNOWN_S: Final = 6 * 3600
"""For a download whose size is not known. What is there by then stays, and the next pod goes on with it."""
RESOURCES: Final[Json] = {"requests": {"cpu": "0", "memory": "0"}, "limits": {"memory": "1Gi"}}
"""Nothing is requested: a kubelet refuses pods that request more than is left of its node, and a replica that waits for
the model may have taken all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetch:
    """The models of one revision on one node. replicas: those that wait for them there, none for a fetch ahead."""

    node: str
    revision: Revision
    replicas: tuple[Replica, ...] = ()

    def name(self, service: str) -> str:
        """One for the same models on the same node, so that there are never two such pods."""
        described = "\n".join((self.node, *_models(self.revision)))
        return f"{service}-{names.COMPONENT_FETCH}-{hashlib.sha256(described.encode()).hexdigest()[:10]}"


def nodes_ahead(resolved: Resolved, settings: OperatorSettings) -> int:
    """On how many nodes beside those of its replicas the model is to be, as far as a scale-up may go; 0 without one."""
    seen, asked = resolved.observed, resolved.revision
    rules = seen.spec.autoscaling
    if asked is None or rules is None or not settings.model_prefetch_nodes or not _reads(asked):
        return 0
    live = sum(r.live for r in seen.replicas)
    return max(0, min(settings.model_prefetch_nodes, rules.max_replicas - live))


def fetch_plan(resolved: Resolved, settings: OperatorSettings, *, now: float) -> FetchPlan:
    """Pods to start and pods that are of no use any more. now: epoch seconds."""
    seen, ahead = resolved.observed, nodes_ahead(resolved, settings)
    fetches = [*_for_replicas(seen), *_ahead(resolved, ahead)]
    wanted = {fetch.name(seen.name): fetch for fetch in fetches}
    there = {pod.name: pod for pod in seen.fetches}
    stale = {name for name, pod in there.items() if name not in wanted or _is_over(wanted[name], pod, now)}
    return FetchPlan(
        create=tuple(_pod(seen, fetch, name, settings) for name, fetch in wanted.items() if name not in there),
        delete=tuple(pod for name, pod in there.items() if name in stale and not pod.leaving),
        again_s=LOOK_AGAIN_S if ahead else 0.0,
    )


def _for_replicas(seen: Observed) -> Iterable[_Fetch]:
    waiting: dict[tuple[str, str], list[Replica]] = {}
    for replica in filter(_waits, (pod for r in seen.replicas for pod in (r, *r.nodes))):
        waiting.setdefault((replica.node, replica.revision), []).append(replica)
    for (node, id_), replicas in waiting.items():
        if (revision := seen.revision(id_)) is not None and _reads(revision):
            yield _Fetch(node=node, revision=revision, replicas=tuple(replicas))


def _ahead(resolved: Resolved, count: int) -> Iterable[_Fetch]:
    """The nodes are the same at each look, also after a restart of the operator, and others for other services."""
    seen, asked = resolved.observed, resolved.revision
    if asked is None or not count:
        return
    taken = {pod.node for replica in seen.replicas if replica.live for pod in (replica, *replica.nodes)}
    pod = asked.template["spec"]
    found = [node.name for node in seen.candidates if node.name not in taken and node.takes(pod)]
    for node in sorted(found, key=lambda node: hashlib.sha256(f"{seen.uid} {node}".encode()).digest())[:count]:
        yield _Fetch(node=node, revision=asked)


def _waits(replica: Replica) -> bool:
    """Whether a replica has its node and, as far as is known, not its model."""
    said = replica.reading
    begins = said is None or said.phase == "starting" or replica.downloads
    return bool(begins and replica.live and replica.node and replica.ready_at is None and replica.phase != "draining")


def _is_over(fetch: _Fetch, pod: ModelPod, now: float) -> bool:
    """Whether a pod has ended and another one has to take its place."""
    if not pod.ended:
        return False
    if not pod.well:
        return now - pod.created > AGAIN_S
    return any(_began_after(r, pod) and _lacks(r, now) for r in fetch.replicas)


def _began_after(replica: Replica, pod: ModelPod) -> bool:
    """Whether what was fetched may have given way before its runtime began, which holds it from then on."""
    ended, began = pod.ended_at, replica.started_at
    return ended is not None and began is not None and ended < began


def _lacks(replica: Replica, now: float) -> bool:
    """Whether its runtime has said that it waits, and had the time to find what was there."""
    return replica.reading is not None and replica.started_at is not None and now - replica.started_at > LACKS_S


def _models(revision: Revision) -> tuple[str, ...]:
    """The model as replicas of a revision are given it, and a draft model of a hub."""
    (container,) = (c for c in revision.template["spec"]["containers"] if c["name"] == names.CONTAINER_RUNTIME)
    drafter = draft_model(str((revision.inputs.get("runtime") or {}).get("speculation", "")))
    return (str(container["args"][0]), *([drafter] if model_uri.is_fetched(drafter) else ()))


def _reads(revision: Revision) -> bool:
    """Whether its replicas wait for what others fetch: one that an operator of before made fetches by itself."""
    containers = (revision.template.get("spec") or {}).get("containers") or ()
    return any(v.get("name") == names.ENV_MODEL_CACHE_READ_ONLY for c in containers for v in c.get("env") or ())


def _cache(template: Json) -> Json:
    """The directory that replicas of the revision read, whatever the operator's option is by now."""
    found: Json = next(volume for volume in template["volumes"] if volume["name"] == "model")
    return found


def _pod(seen: Observed, fetch: _Fetch, name: str, settings: OperatorSettings) -> Json:
    """It has its node by name: where the replica is already, no scheduler is asked, whatever is free there."""
    template, model = fetch.revision.template["spec"], fetch.revision.inputs.get("model") or {}
    uri, source = str(model.get("uri", "")), remote_model.secret(str(model.get("secretName", "")))
    models = _models(fetch.revision)
    variables = remote_model.variables(uri, settings, drafts=len(models) > 1)
    if settings.model_cache_bytes:
        variables.append({"name": names.ENV_MODEL_CACHE_BYTES, "value": str(settings.model_cache_bytes)})
    size = remote_model.download_bytes(seen)
    return helper_pod(
        seen,
        name,
        names.COMPONENT_FETCH,
        label=names.LABEL_FETCHES,
        container={
            "image": settings.runtime_image_cpu,
            "command": ["kvasir", "pull"],
            "args": [*models, "--record", names.MODEL_MOUNT],
            "env": [{"name": "HOME", "value": SCRATCH}, variable(uri), *variables],
            "resources": RESOURCES,
            "volumeMounts": with_scratch(model_mounts(source, writes=True)),
        },
        volumes=[_cache(template), *source],
        nodeName=fetch.node,
        restartPolicy="OnFailure",
        activeDeadlineSeconds=LEAST_S + size // SLOWEST_DOWNLOAD if size else UNKNOWN_S,
        imagePullSecrets=template.get("imagePullSecrets"),
        tolerations=template.get("tolerations"),
    )
