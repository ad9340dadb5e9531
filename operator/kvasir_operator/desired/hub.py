"""A model on a hub: the commit that its pods load, and what they need to fetch it.

Called by `template` and `inspection`, and by `revision` for the commit. The operator itself never asks the hub.
"""

from typing import Final

from kvasir_api import names
from kvasir_api.inspection import COMMIT
from kvasir_kube.kinds import Json
from kvasir_operator.desired.source import ModelSource, is_on_hub, model_source
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings

CACHE_EXTRA_BYTES: Final = 256 * 2**20
"""Beside a model's files: a file that is fetched again while the damaged one is still there, and lists."""


def pinned_source(seen: Observed) -> ModelSource:
    """The source of a service's model, on a hub with the commit in place of the revision once it is known."""
    uri = seen.spec.model.uri
    pinned = commit(seen)
    return model_source(f"{uri.partition('@')[0]}@{pinned}" if pinned else uri)


def commit(seen: Observed) -> str:
    """The commit that a model's uri on a hub stands for: the one that it names, that was read of the hub for this spec,
    or that replicas of the same uri load. Empty while it is not known, and for a model that is on no hub."""
    uri = seen.spec.model.uri
    if not is_on_hub(uri):
        return ""
    if COMMIT.fullmatch(named := uri.partition("@")[2]):
        return named
    if seen.model is not None and seen.model.uri == uri and seen.model.commit:
        return seen.model.commit
    running = {workload.revision for workload in seen.workloads}
    models = [r.inputs.get("model") or {} for r in seen.revisions if r.id in running]
    return next((str(model.get("commit", "")) for model in reversed(models) if model.get("uri") == uri), "")


def is_unresolved(seen: Observed) -> bool:
    """Whether the model is on a hub and its commit is not known, so that no replica may start."""
    return is_on_hub(seen.spec.model.uri) and not commit(seen)


def secret(seen: Observed) -> list[Json]:
    """The Secret by which a pod reaches the hub, if there is one. The operator never reads it. Optional: without it the
    runtime says what is missing, while a pod would wait."""
    name = seen.spec.model.secret_name
    return [{"name": "hub", "secret": {"secretName": name, "optional": True}}] if name else []


def variables(seen: Observed, settings: OperatorSettings) -> list[Json]:
    """How a container reaches the hub and where it keeps what it fetches; none for a model that is on no hub."""
    if not is_on_hub(seen.spec.model.uri):
        return []
    given = {
        "HF_HUB_CACHE": names.MODEL_MOUNT,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        names.ENV_HUB_SETTINGS: names.HUB_MOUNT,
    }
    if settings.hub_endpoint:
        given["HF_ENDPOINT"] = settings.hub_endpoint
    return [{"name": name, "value": value} for name, value in given.items()]


def cache_bytes(seen: Observed) -> int:
    """Disk of the node for the files of a model on a hub; 0 while their size is not known, and where they lie on a
    claim."""
    size = download_bytes(seen)
    return size + CACHE_EXTRA_BYTES if size and not seen.spec.model.cache_claim else 0


def download_bytes(seen: Observed) -> int:
    """Bytes of a model on a hub, 0 while they are not known."""
    known = seen.model
    return (known.download_bytes or 0) if known is not None and known.uri == seen.spec.model.uri else 0
