"""The status of an InferenceService: what the operator observed, as pydantic models. Written by the operator alone.

Numbers are rounded, so that it changes rarely. What has no value is absent: a number that is not known is None, while 0
is a count. An empty text, list or object has no value either, and is not written.
"""

from typing import Final, Literal

from pydantic import Field

from kvasir_api.crd_types import CrdObject, Name, NoteValue, ServedName
from kvasir_api.option_fields import option
from kvasir_api.options import Reduction

MOST: Final = 2**53 - 1
"""The largest number that every reader of JSON keeps as it is."""
MOST_REPLICAS: Final = 1_000_000


def two_digits(value: float) -> int:
    """A number as status has it: two significant digits, so that noise writes nothing, and within its bounds."""
    return max(0, min(int(float(f"{min(value, MOST):.2g}")), MOST))


class Condition(CrdObject):
    """One condition, as in metav1.Condition."""

    type: str = option(..., "Type of the condition in CamelCase.", max_length=316)
    status: Literal["True", "False", "Unknown"] = option(..., "Whether the condition holds.")
    reason: str = option(..., "One word that a machine can act upon.", min_length=1, max_length=1024)
    message: str = option("", "A sentence for a person, with the numbers.", max_length=32_768)
    last_transition_time: str = option(..., "When the status changed last, RFC 3339.", date_time=True)
    observed_generation: int = option(0, "Generation of the spec that this was computed from.", ge=0, le=MOST)


class ReplicaCounts(CrdObject):
    """Replicas that are not ready by what they are doing; what none of them does is absent."""

    starting: int | None = option(
        None, "Pods scheduled whose runtime has not spoken yet.", unit="replicas", ge=0, le=MOST_REPLICAS
    )
    loading: int | None = option(None, "Pods that load or warm the model.", unit="replicas", ge=0, le=MOST_REPLICAS)
    downloaded_bytes: int | None = option(
        None,
        "What the starting replica that is furthest behind has fetched of model.downloadBytes.",
        unit="bytes",
        ge=0,
        le=MOST,
    )
    draining: int | None = option(
        None, "Pods that finish their requests before they leave.", unit="replicas", ge=0, le=MOST_REPLICAS
    )
    failed: int | None = option(None, "Pods that fail.", unit="replicas", ge=0, le=MOST_REPLICAS)
    unschedulable: int | None = option(
        None, "Pods for which the scheduler finds no node.", unit="replicas", ge=0, le=MOST_REPLICAS
    )


class ScalingChange(CrdObject):
    """One change of the wanted number of replicas and why."""

    time: str = option(..., "When it was decided, RFC 3339.", date_time=True)
    from_: int = Field(..., alias="from", description="Replicas wanted before.", ge=0, le=MOST_REPLICAS)
    to: int = option(..., "Replicas wanted from then on.", unit="replicas", ge=0, le=MOST_REPLICAS)
    signal: str = option(
        ...,
        "Signal (kv, slots, prefill, itl, ttft, backlog) or bound (ceiling, floor, activity, reserve, idle) that determined it.",
        max_length=64,
    )
    reason: str = option(..., "What determined the number, with the numbers behind it.", max_length=1024)


class AutoscalingStatus(CrdObject):
    """What the autoscaler decided last, rounded so that status is written rarely."""

    desired_replicas: int = option(0, "Replicas wanted now.", unit="replicas", ge=0, le=MOST_REPLICAS)
    raw_replicas: int = option(
        0,
        "Replicas demanded before windows, rate limits and bounds; with minReplicas 0 at least one for idleSeconds after a request.",
        unit="replicas",
        ge=0,
        le=MOST_REPLICAS,
    )
    binding_signal: str = option("", "The signal that gave rawReplicas.", max_length=64)
    limited_by: str = option("", "What kept desiredReplicas from rawReplicas, if anything.", max_length=64)
    message: str = option("", "Why so many replicas are wanted now, in one sentence.", max_length=1024)
    decisions: list[ScalingChange] = option([], "The last changes, newest first.", max_length=10)


class RolesStatus(CrdObject):
    """Replicas that compute prompts for the others."""

    prefill: int = option(0, "How many they are.", unit="replicas", ge=0, le=MOST_REPLICAS)
    message: str = option("", "Why it is that.", max_length=512)


class ModelStatus(CrdObject):
    """What was read of the model before replicas start."""

    uri: str = option("", "The model that was looked at.", max_length=1024)
    inspected_at: str = option("", "When it was looked at, RFC 3339.", max_length=64)
    architecture: str = option("", "Architecture that its config names.", max_length=128)
    parameters: int | None = option(None, "Number of its weights.", ge=0, le=MOST)
    commit: str = option(
        "",
        "Commit on the hub, or SHA-256 of the manifest, archive or list of objects, that the uri stands for; every replica loads it.",
        max_length=64,
    )
    download_bytes: int | None = option(None, "Size of the files that a replica fetches.", unit="bytes", ge=0, le=MOST)
    facts: str = option("", "Sizes from its config as JSON, of which forecasts are made.", max_length=4096)
    message: str = option("", "Why it could not be read.", max_length=1024)


class ClassForecast(CrdObject):
    """What one replica would hold on an AcceleratorClass that the service may get."""

    name: str = option(..., "Name of the class.", max_length=253)
    fit: Literal["Fits", "TooSmall", "Unknown"] = option(..., "Whether the model fits one device of it.")
    kv_tokens: int | None = option(None, "KV cache of one replica as forecast.", unit="tokens", ge=0, le=MOST)
    requests: int | None = option(
        None, "Requests of the longest length that it would hold at once.", unit="requests", ge=0, le=MOST
    )
    stream_tokens_per_second: int | None = option(
        None, "Decoded at best for a request alone.", unit="tokens/s", ge=0, le=MOST
    )
    batch_tokens_per_second: int | None = option(
        None, "Decoded at best while requests fill the cache.", unit="tokens/s", ge=0, le=MOST
    )


class Capacity(CrdObject):
    """What one replica can hold: as forecast from the model's config, and as measured."""

    fit: Literal["Fits", "TooSmall", "Unknown"] | None = option(
        None, "Whether the model fits the memory of the spec; absent where unknown."
    )
    message: str = option("", "The numbers of the forecast, or why there are none.", max_length=1024)
    predicted_weights_bytes: int | None = option(
        None, "Weights of one replica as forecast.", unit="bytes", ge=0, le=MOST
    )
    predicted_kv_tokens: int | None = option(None, "KV cache of one replica as forecast.", unit="tokens", ge=0, le=MOST)
    predicted_requests: int | None = option(
        None, "Requests of the longest length that it would hold at once.", unit="requests", ge=0, le=MOST
    )
    measured_percent: int | None = option(
        None,
        "kvTokens in percent of predictedKvTokens.",
        unit="percent",
        ge=0,
        le=MOST,
    )
    classes: list[ClassForecast] = Field(
        [],
        description="Forecasts for the AcceleratorClasses that were considered, in order of preference.",
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    cheapest_class: str = option(
        "",
        "Of these the one that decodes a token for the least money and a request alone within itlMilliseconds.",
        max_length=253,
    )
    kv_tokens: int | None = option(None, "KV cache of one ready replica as measured.", unit="tokens", ge=0, le=MOST)
    prefill_tokens_per_second: int | None = option(
        None, "Measured prefill rate of one replica, rounded.", unit="tokens/s", ge=0, le=MOST
    )
    predicted_prefill_tokens_per_second: int | None = option(
        None, "Prompts at best, by the class's compute.", unit="tokens/s", ge=0, le=MOST
    )
    predicted_stream_tokens_per_second: int | None = option(
        None, "Decoded at best for a request alone.", unit="tokens/s", ge=0, le=MOST
    )
    predicted_batch_tokens_per_second: int | None = option(
        None, "Decoded at best while requests fill the cache.", unit="tokens/s", ge=0, le=MOST
    )
    stream_tokens_per_second: int | None = option(
        None, "Decoded for each request, as last measured.", unit="tokens/s", ge=0, le=MOST
    )
    batch_tokens_per_second: int | None = option(
        None, "Decoded by one replica, as last measured.", unit="tokens/s", ge=0, le=MOST
    )
    draft_tokens: int | None = option(
        None, "Drafted ahead of an answer in a step that has drafts, as last measured.", unit="tokens", ge=0, le=MOST
    )
    accepted_draft_percent: int | None = option(
        None, "Of them those that were kept, as last measured to 10 percent.", unit="percent", ge=0, le=100
    )
    no_drafts: str = option("", "Why replicas draft nothing though runtime.speculation is auto.", max_length=253)
    decode_percent: int | None = option(
        None, "Measured speed against what compute allows for those batches.", unit="percent", ge=0, le=MOST
    )
    slow_replicas: list[Name] = option(
        [], "Ready replicas slower than the class's degradedBelowPercent.", max_length=16
    )
    device: str = option("", "Device and kernels that really serve.", max_length=253)


class ColdStart(CrdObject):
    """How long the last replica took from its creation until it took requests, and where the time went.

    A part that took less than half a second is absent.
    """

    seconds: int = option(0, "From creation to ready.", unit="seconds", ge=0, le=MOST)
    schedule_seconds: int | None = option(None, "Until a node was found.", unit="seconds", ge=0, le=MOST)
    weights_seconds: int | None = option(
        None, "Until the model was on the node: mounting its volume, and fetching it.", unit="seconds", ge=0, le=MOST
    )
    image_seconds: int | None = option(
        None,
        "Until the container ran: the image; with volumes where the kubelet reports no time of theirs.",
        unit="seconds",
        ge=0,
        le=MOST,
    )
    process_seconds: int | None = option(
        None, "Starting the processes of the runtime: imports, tokenizer.", unit="seconds", ge=0, le=MOST
    )
    load_seconds: int | None = option(None, "Reading and placing the weights.", unit="seconds", ge=0, le=MOST)
    warm_seconds: int | None = option(None, "First steps, compilation and graphs.", unit="seconds", ge=0, le=MOST)
    other_seconds: int | None = option(
        None, "The rest: probes, and the whole seconds of Kubernetes.", unit="seconds", ge=0, le=MOST
    )


class RevisionStatus(CrdObject):
    """A revision that has replicas, or that one may go back to."""

    name: str = option(..., "Name of the revision, as rollout.promote and rollout.abort take it.", max_length=63)
    number: int = option(
        0, "Rises with every revision that the spec requests, also for an old one again.", ge=0, le=MOST
    )
    replicas: int = option(0, "Pods of it that do not leave.", unit="replicas", ge=0, le=MOST_REPLICAS)
    ready_replicas: int = option(0, "Pods of it that take requests.", unit="replicas", ge=0, le=MOST_REPLICAS)
    changed: str = option("", "Fields in which it differs from the one before it.", max_length=512)


class RolloutStatus(CrdObject):
    """Which revisions there are."""

    current_revision: str = option("", "Revision that the spec requests.", max_length=253)
    accelerator_class: str = option("", "AcceleratorClass of the current revision, if one was chosen.", max_length=253)
    unavailable_classes: list[Name] = option([], "AcceleratorClasses that found no node for these pods.", max_length=8)
    reductions: list[Reduction] = option([], "What was taken of spec.reductions.", max_length=4)
    nodes: int | None = option(None, "Pods of a replica, by spec.parallelism.", ge=1, le=8)
    pod_hash: str = option("", "Hash of the pods that the fields above are about.", max_length=64)
    updated_replicas: int = option(0, "Replicas of the current revision.", unit="replicas", ge=0, le=MOST_REPLICAS)
    last_good_revision: str = option("", "Newest revision that was wholly ready.", max_length=253)
    history: list[RevisionStatus] = Field(
        [],
        description="Revisions, newest first; absent while there is one.",
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    rolled_back_revision: str = option("", "Revision that was rolled back to the last good one.", max_length=253)
    phase: Literal["Progressing", "Canary", "Held", "Paused", "RolledBack", "Waiting"] | None = option(
        None,
        "Where the rollout stands. Waiting: for its turn in a change of the installation.",
    )
    strategy: Literal["Surge", "InPlace", "BlueGreen"] | None = option(
        None, "How replicas are replaced now: InPlace under the strategy Surge while no accelerator can be spared."
    )
    step: int | None = option(None, "Step of the canary, from 1.", ge=0, le=MOST)
    step_since: str = option("", "When the replicas of the step were ready, RFC 3339.", max_length=64)
    message: str = option("", "Why the rollout stands where it does.", max_length=1024)


class Address(CrdObject):
    """Where clients call."""

    url: str = option("", "Base URL of the OpenAI API for this service.", max_length=2048)


class InferenceServiceStatus(CrdObject):
    """What the operator observed."""

    observed_generation: int = option(0, "Generation of the spec that this status was computed from.", ge=0, le=MOST)
    conditions: list[Condition] = Field(
        [],
        description="Ready is always present; others only while they are True.",
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    selector: str = option("", "Label selector of the pods, for the scale subresource.", max_length=1024)
    replicas: int = option(0, "Pods that exist.", unit="replicas", ge=0, le=MOST_REPLICAS)
    ready_replicas: int = option(0, "Pods that take requests.", unit="replicas", ge=0, le=MOST_REPLICAS)
    desired_replicas: int = option(
        0, "Pods wanted, by hand or by the autoscaler.", unit="replicas", ge=0, le=MOST_REPLICAS
    )
    model_name: str = option("", "Name that clients put into the field model of a request.", max_length=253)
    refused_names: list[ServedName] = option(
        [], "Names of spec.model that were another namespace's when this service claimed them.", max_length=8
    )
    counts: ReplicaCounts = option(ReplicaCounts(), "Replicas that are not ready, by what they do.")
    model: ModelStatus | None = option(None, "What was read of the model before replicas start.")
    capacity: Capacity = option(Capacity(), "What one replica can hold.")
    cold_start: ColdStart | None = option(None, "How the last start of a replica went.")
    autoscaling: AutoscalingStatus | None = option(None, "What the autoscaler decided last.")
    roles: RolesStatus | None = option(None, "Replicas that compute prompts for the others.")
    ranks: list[NoteValue] = option([], "Processes of replicas that have several, by rank.", max_length=16)
    rollout: RolloutStatus = option(RolloutStatus(), "Which revisions there are.")
    address: Address = option(Address(), "Where clients call.")
