"""Whether a pod has to look at a service's model before replicas start, which pod that is, and what it found.

Such a pod takes no accelerator, writes nothing, has no token of the cluster and little time. What is not known never
holds a service up: a pod that fails, stays silent or is refused ends as a forecast of Unknown. But for the version of a
model that is fetched, without which no replica may start: that is looked for until it is found.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from kvasir_api import model_uri, names
from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.hf_config import without_dollars
from kvasir_api.inspection import (
    MAX_BYTES,
    ModelFacts,
    Prediction,
    RemoteInspection,
    decode,
    decode_remote,
    encode,
    overrides_digest,
)
from kvasir_api.speculation import draft_model
from kvasir_api.status import MOST, ModelStatus
from kvasir_kube.kinds import Json
from kvasir_operator.desired import remote_model
from kvasir_operator.desired.fit import inspected
from kvasir_operator.desired.helper_pod import helper_pod, with_scratch
from kvasir_operator.desired.source import ModelSource, variable
from kvasir_operator.desired.template import SCRATCH, model_mounts, volume
from kvasir_operator.observed.model_pod import ModelPod
from kvasir_operator.observed.replica import epoch
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import Resolved

DEADLINE_S: Final = 60.0
"""A pod may run for so long."""
PULL_S: Final = 600.0
"""A pod that has found its node may take so long until it runs: a node that has never had its image pulls it."""
PATIENCE_S: Final = 120.0
"""So long after a service was first held up for its model it goes on without a forecast, where nothing is pulled."""
UNBOUND_S: Final = 10.0
"""So long a claim may wait for its volume: a pod that looks at one must not be the one that decides where it lies."""
UNPLACED_S: Final = 5.0
"""So long it is waited for a node for the pod: it requests so little that the replica itself will hardly find one."""
AGAIN_S: Final = 600.0
"""A refused model is looked at again after so long, since other files may have come to lie there."""
SOURCE_AGAIN_S: Final = 30.0
"""A source that did not say what a uri stands for is asked again after so long."""
RESOURCES: Final[Json] = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"memory": "512Mi"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionPlan:
    """What to do about pods that look at the model.

    create: the pod to start. delete: pods that are of no use any more. waiting: why no replica may start yet, empty
    when they may.
    """

    create: Json | None = None
    delete: tuple[ModelPod, ...] = ()
    waiting: str = ""


def known_model(
    seen: Observed, *, wanted: int, waited_s: float, ran_s: float = 0.0, now: float, time: str
) -> ModelStatus | None:
    """What is known of the model now, from which the spec is resolved: as the status has it, or as a pod that has ended
    read it.

    wanted: replicas. waited_s: since it was first held up; ran_s: since its pod was first seen to run, 0 while it does
    not. now: epoch seconds; time: RFC 3339.
    """
    unresolved = remote_model.is_unresolved(seen)
    if not inspected(seen.spec) and not unresolved:
        return _with_commit(seen, None)
    known, mine = _current(seen), _own_pod(seen)
    is_needed = unresolved or (wanted and not _served(seen))
    if is_needed and (known is None or _of_long_ago(known, now, unresolved=unresolved)):
        if mine is not None and mine.ended and not mine.leaving:
            return _read(seen, mine, known, time)
        if (known is None or unresolved) and (why := _trouble(seen, mine, waited_s, ran_s)):
            return _unknown(seen, why, time)
    return _with_commit(seen, known or _outdated(seen))


def inspection_plan(
    resolved: Resolved, settings: OperatorSettings, *, wanted: int, written: bool, now: float
) -> InspectionPlan:
    """The next step for a spec that was resolved with `known_model`.

    wanted: replicas. written: whether the status has that model already. now: epoch seconds.
    """
    seen = resolved.observed
    known, mine = _current(seen), _own_pod(seen)
    everything = tuple(pod for pod in seen.inspections if not pod.leaving)
    others = tuple(pod for pod in everything if pod != mine)
    unresolved = remote_model.is_unresolved(seen)
    if not inspected(seen.spec) and not unresolved:
        return InspectionPlan(delete=everything)
    again = known is None or _to_be_looked_at_again(known, resolved.placement.forecast, now, unresolved=unresolved)
    if not again:
        return InspectionPlan(delete=everything if written else others)
    if (not wanted or _served(seen)) and not unresolved:
        return InspectionPlan(delete=everything)
    create = _pod(resolved, pod_name(seen), settings) if mine is None and seen.claim_bound else None
    return InspectionPlan(create=create, delete=others, waiting="" if known and not unresolved else _held(seen, mine))


def refused(seen: Observed, why: str, time: str) -> ModelStatus:
    """The model status when the API server refuses the inspection pod."""
    return _unknown(seen, f"the API server refused the pod that reads it: {why}", time)


def pod_name(seen: Observed) -> str:
    """One name for one model of one service, so that there are never two such pods."""
    described = seen.spec.model.uri + seen.spec.runtime.hf_overrides + draft_model(seen.spec.runtime.speculation)
    digest = hashlib.sha256(described.encode()).hexdigest()[:8]
    return f"{seen.name}-{names.COMPONENT_INSPECT}-{digest}"


def is_running(seen: Observed) -> bool:
    """Whether the container of the pod that looks at this very model runs."""
    mine = _own_pod(seen)
    return mine is not None and mine.running_since is not None and not mine.ended


def _own_pod(seen: Observed) -> ModelPod | None:
    """The pod that looks at this very model."""
    name = pod_name(seen)
    return next((pod for pod in seen.inspections if pod.name == name), None)


def _current(seen: Observed) -> ModelStatus | None:
    """What is known of this very model, in words that this operator reads."""
    known = seen.model
    return None if known is None or known.uri != seen.spec.model.uri or _is_outdated(seen, known) else known


def _outdated(seen: Observed) -> ModelStatus | None:
    """What another version of the operator wrote of this model. What it shows a person is still true, so that it stays
    until there are other facts."""
    known = seen.model
    return known if known is not None and known.uri == seen.spec.model.uri and _of_other_schema(known) else None


def _is_outdated(seen: Observed, known: ModelStatus) -> bool:
    """Whether facts are of another schema, or were read with other fields in place of the config's or of another draft
    model; or there is but a version."""
    if not known.facts:
        return not known.message
    if _of_other_schema(known):
        return True
    runtime = seen.spec.runtime
    try:
        read = decode(known.facts)
        return (read.overrides, read.draft_model) != (
            overrides_digest(runtime.hf_overrides),
            draft_model(runtime.speculation),
        )
    except ValueError:
        return False


def _of_other_schema(known: ModelStatus) -> bool:
    """Whether another version of the operator wrote the facts."""
    try:
        return bool(known.facts) and decode(known.facts) is None
    except ValueError:
        return True


def _with_commit(seen: Observed, known: ModelStatus | None) -> ModelStatus | None:
    """What is known of the model; of one that is fetched at least the version, which must not be lost."""
    if known is not None or not (pinned := remote_model.commit(seen)):
        return known
    mine = seen.model if seen.model is not None and seen.model.uri == seen.spec.model.uri else ModelStatus()
    return ModelStatus(uri=seen.spec.model.uri, commit=pinned, download_bytes=mine.download_bytes)


def _to_be_looked_at_again(known: ModelStatus, judged: Prediction | None, now: float, *, unresolved: bool) -> bool:
    """Whether the model was too large for the memory, by what was read a while ago, or its source did not give it."""
    too_small = judged is not None and judged.verdict == "TooSmall"
    return (too_small or unresolved) and _of_long_ago(known, now, unresolved=unresolved)


def _of_long_ago(known: ModelStatus, now: float, *, unresolved: bool) -> bool:
    """Whether it is so old that other files may have come to lie there, or that the source may answer otherwise."""
    at = epoch(known.inspected_at)
    if unresolved:
        return at is None or now - at > SOURCE_AGAIN_S
    return bool(known.facts) and (at is None or now - at > AGAIN_S)


def _served(seen: Observed) -> bool:
    """Whether replicas of this very model run or are to run: it is known to load, and its numbers are measured. Of how
    many pods they should be is not known by that."""
    if seen.spec.parallelism == "Auto":
        return False
    running = {workload.revision for workload in seen.workloads}
    models = [r.inputs.get("model") or {} for r in seen.revisions if r.id in running]
    return any(model.get("uri") == seen.spec.model.uri for model in models)


def _trouble(seen: Observed, mine: ModelPod | None, waited_s: float, ran_s: float) -> str:
    """Why it is not waited for any longer; empty when it is."""
    if not seen.claim_bound and waited_s > UNBOUND_S:
        return "its claim has no volume yet"
    if mine and mine.unplaced and waited_s > UNPLACED_S:
        return f"no node takes the pod that reads it: {mine.trouble}"
    if is_running(seen):
        return f"the pod that reads it has run for {DEADLINE_S:g} s" if ran_s > DEADLINE_S else ""
    patience_s = PULL_S if mine and mine.node and not mine.fails else PATIENCE_S
    if waited_s > patience_s:
        why = f": {mine.trouble}" if mine and mine.trouble else ""
        return f"no pod has read it within {patience_s:g} s{why}"
    return ""


def _held(seen: Observed, mine: ModelPod | None) -> str:
    if not seen.claim_bound:
        return "the model's claim waits for its volume"
    trouble = f": {mine.trouble}" if mine and mine.trouble else ""
    return f"pod {pod_name(seen)} reads the model's config{trouble}"


def _read(seen: Observed, pod: ModelPod, known: ModelStatus | None, time: str) -> ModelStatus:
    """The facts of the termination message, or why there are none; what was known before stays so for another while."""
    fetched = model_uri.is_fetched(seen.spec.model.uri)
    why = pod.trouble.removeprefix(names.REFUSAL_PREFIX if fetched else "")
    if pod.said:
        said = pod.said[: MAX_BYTES + 1]
        try:
            return _of_remote(seen, decode_remote(said), time) if fetched else _of_facts(seen, decode(said), said, time)
        except ValueError as error:
            why = str(error)
    why = why or "the pod that reads it ended without a word"
    if known is not None and known.facts:
        return known.model_copy(update={"inspected_at": time})
    return _unknown(seen, why, time)


def _of_facts(seen: Observed, found: ModelFacts, said: str, time: str) -> ModelStatus:
    return ModelStatus(
        uri=seen.spec.model.uri,
        inspected_at=time,
        architecture=found.architecture[:128],
        parameters=found.shape.parameters,
        facts=said,
    )


def _of_remote(seen: Observed, found: RemoteInspection, time: str) -> ModelStatus:
    """A version, and the facts of its config where those were read. Raises ValueError for facts of another schema."""
    said = encode(found.facts).decode() if found.facts is not None else ""
    status = _of_facts(seen, decode(said), said, time) if said else _unknown(seen, found.message, time)
    size = max(0, min(found.download_bytes, MOST)) or None
    return status.model_copy(update={"commit": found.commit, "download_bytes": size})


def _unknown(seen: Observed, why: str, time: str) -> ModelStatus:
    """Nothing is known."""
    return ModelStatus(uri=seen.spec.model.uri, inspected_at=time, commit=remote_model.commit(seen), message=why[:1024])


def _pod(resolved: Resolved, name: str, settings: OperatorSettings) -> Json:
    seen = resolved.observed
    where, source = remote_model.pinned_source(seen), remote_model.secret(seen.spec.model.secret_name)
    return helper_pod(
        seen,
        name,
        names.COMPONENT_INSPECT,
        label=names.LABEL_INSPECTS,
        container=_container(seen, where, source, settings),
        volumes=[volume(seen, where, settings), *source],
        restartPolicy="Never",
        activeDeadlineSeconds=int(PULL_S + DEADLINE_S),  # the kubelet counts the pull of the image
        imagePullSecrets=[{"name": secret.name} for secret in seen.spec.pod.image_pull_secrets],
        **_place(seen, resolved.placement.accelerator, where),
    )


def _container(seen: Observed, where: ModelSource, source: list[Json], settings: OperatorSettings) -> Json:
    """The image for processors is the smaller one, and its version is the operator's own."""
    given = without_dollars(seen.spec.runtime.hf_overrides)
    options = ["--hf-overrides", given] if given else []
    if drafter := draft_model(seen.spec.runtime.speculation):
        options += ["--speculation", drafter]
    return {
        "image": settings.runtime_image_cpu,
        "command": ["kvasir", "plan"],
        "args": [where.path, "--facts", names.PATH_TERMINATION_LOG, *options],
        "env": [
            {"name": "HOME", "value": SCRATCH},
            variable(seen.spec.model.uri),
            *remote_model.variables(seen.spec.model.uri, settings),
        ],
        "resources": RESOURCES,
        "volumeMounts": with_scratch(model_mounts(source, writes=where.kind == "remote")),
    }


def _place(seen: Observed, found: AcceleratorClassSpec | None, where: ModelSource) -> Json:
    """Where the model is: a directory lies on the class's nodes, while a claim's volume draws the pod to itself.

    Taints are borne, so that it may run there; for a claim no node with an accelerator is asked for.
    """
    of_class = found.pod.node_selector if found and where.kind == "file" else {}
    borne = [*seen.spec.pod.tolerations, *(found.pod.tolerations if found else ())]
    place: Json = {}
    if selected := {**seen.spec.pod.node_selector, **of_class}:
        place["nodeSelector"] = selected
    if borne:
        place["tolerations"] = [t.model_dump(by_alias=True, exclude_defaults=True) for t in borne]
    return place
