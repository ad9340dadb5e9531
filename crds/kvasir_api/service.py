"""InferenceService `serving.kvasir.dev/v1alpha1`: the resource that a user writes, as pydantic models.

The CRD is generated from these models (schema.py), and the operator parses resources into them; a field exists here only
if changing it changes a pod, a route or the status. Integers only: floats drift in GitOps diffs.
"""

from typing import Annotated, Final, Literal

from pydantic import StringConstraints, field_validator

from kvasir_api import model_uri, speculation
from kvasir_api.autoscaling import MAX_REPLICAS, Autoscaling
from kvasir_api.crd_types import (
    DNS_PATTERN,
    QUANTITY_PATTERN,
    Cpu,
    CrdObject,
    LabelKey,
    LabelValue,
    Name,
    NoteValue,
    Quantity,
    ServedName,
    ShortName,
    validation_rules,
)
from kvasir_api.option_fields import option
from kvasir_api.options import Reduction, RuntimeOptions
from kvasir_api.rank_state import MOST_RANKS
from kvasir_api.roles import Roles
from kvasir_api.rollout import Rollout
from kvasir_api.status import InferenceServiceStatus

_REMOTE: Final = f"^({'|'.join(scheme.removesuffix('://') for scheme in model_uri.FETCHED)})://"
OPTIONAL_NAME: Final = f"^({DNS_PATTERN.strip('^$')})?$"
ClaimName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]


class ModelSpec(CrdObject):
    """Which model, and under which name clients request it."""

    model_config = validation_rules(
        (
            f"self.uri.matches('{_REMOTE}|^pvc://|^file:///')",
            "model.uri must be hf://ORG/NAME@REVISION (a repository on the hub), s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, oci://HOST/REPOSITORY:TAG, https://HOST/ARCHIVE#sha256=DIGEST, pvc://CLAIM/PATH (a PersistentVolumeClaim of this namespace) or file:///PATH (a directory of the node that the operator allows)",
            ".uri",
        ),
        (
            "!self.uri.matches('^(s3|gs)://') || self.uri.matches('^(s3|gs)://[a-z0-9][a-z0-9._-]+(/[A-Za-z0-9._=+-]+)*/?(@sha256:[0-9a-f]{64})?$')",
            "model.uri of form s3:// and gs:// needs s3://BUCKET/PREFIX of letters, digits, '.', '_', '=', '+' and '-'",
            ".uri",
        ),
        (
            "!self.uri.startsWith('oci://') || self.uri.matches('^oci://[A-Za-z0-9.-]+(:[0-9]+)?/[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?$')",
            "model.uri of form oci:// needs oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:DIGEST",
            ".uri",
        ),
        (
            "!self.uri.startsWith('https://') || self.uri.matches('^https://[A-Za-z0-9.-]+(:[0-9]+)?/[A-Za-z0-9._~/%+-]*[.](tar([.](gz|zst))?|tgz|zip|gguf)#sha256=[0-9a-f]{64}$')",
            "model.uri of form https:// needs a .tar, .tar.gz, .tar.zst, .tgz, .zip or .gguf file without query or password, and its checksum: https://HOST/PATH.tar.gz#sha256=DIGEST",
            ".uri",
        ),
        (
            "!self.uri.startsWith('hf://') || self.uri.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*[.]gguf)?(@[A-Za-z0-9][A-Za-z0-9._/-]*)?$')",
            "model.uri of form hf:// needs hf://ORG/NAME, hf://ORG/NAME@REVISION or hf://ORG/NAME/FILE.gguf@REVISION; a revision is a branch, a tag or a commit",
            ".uri",
        ),
        (
            f"self.?secretName.orValue('') == '' || self.uri.matches('{_REMOTE}')",
            "model.secretName is for models that replicas fetch, with a uri of form hf://, s3://, gs://, oci:// or https://",
            ".secretName",
        ),
        (
            f"self.?cacheClaim.orValue('') == '' || self.uri.matches('{_REMOTE}')",
            "model.cacheClaim is for models that replicas fetch, with a uri of form hf://, s3://, gs://, oci:// or https://",
            ".cacheClaim",
        ),
        (
            "!self.uri.startsWith('pvc://') || self.uri.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9._-]+)*/?$')",
            "model.uri of form pvc://CLAIM/PATH needs a claim name of lower-case letters, digits and '-', and a path of letters, digits, '.', '_' and '-'",
            ".uri",
        ),
        ("!self.uri.contains('/../') && !self.uri.endsWith('/..')", "model.uri must not climb with '..'", ".uri"),
    )

    uri: str = option(
        ...,
        "Where the model is, a directory (Hugging Face layout, safetensors, or one GGUF file) or on a claim a .gguf file: pvc://CLAIM/PATH, file:///PATH below a directory that the operator allows; or what replicas fetch: hf://ORG/NAME@REVISION on the hub, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, oci://HOST/REPOSITORY:TAG, https://HOST/ARCHIVE#sha256=DIGEST. Every replica loads the version that status.model.commit names.",
        min_length=7,
        max_length=1024,
    )
    secret_name: str = option(
        "",
        "Secret for the source of a model that pods fetch: its keys token, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, .dockerconfigjson, endpoint (base URL of a mirror), ca.crt and proxy, all optional.",
        max_length=253,
        pattern=OPTIONAL_NAME,
    )
    cache_claim: str = option(
        "",
        "PersistentVolumeClaim in which replicas share what one of them has fetched; ReadWriteMany for several nodes. Default: each pod has its own copy.",
        max_length=253,
        pattern=OPTIONAL_NAME,
    )
    served_name: str = option(
        "",
        "Name that clients put into the field model of a request; default: the name of this object. Unique over all services of a gateway.",
        max_length=253,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._/:-]*)?$",
    )
    aliases: list[ServedName] = option(
        [],
        "Further names under which clients may request it, each as unique as servedName.",
        max_length=7,
        list_type="set",
    )
    inspect: Literal["Auto", "Always", "Never"] = option(
        "Auto",
        "Whether a small pod without accelerator reads the model's config before replicas start, so that a model that cannot fit is refused with numbers; Auto does where an accelerator would be taken, or parallelism is Auto.",
    )


class Accelerator(CrdObject):
    """GPUs of one replica."""

    model_config = validation_rules(
        (
            "self.?count.orValue(0) > 0 || (self.?classes.orValue([]).size() == 0 && self.?minMemory.orValue('') == '')",
            "resources.accelerator.count must be above 0 where classes or minMemory are set",
            ".count",
        ),
    )

    resource_name: str = option(
        "nvidia.com/gpu",
        "Extended resource that the device plugin offers.",
        max_length=253,
        pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
    )
    count: int = option(
        0,
        "GPUs of one replica, each with a part of every layer; 0 serves on the CPU.",
        unit="devices",
        ge=0,
        le=MOST_RANKS,
    )
    classes: list[Name] = option(
        [],
        "AcceleratorClasses in order of preference; the first that exists and has minMemory counts, and its resourceName.",
        max_length=8,
    )
    min_memory: str = option(
        "",
        "Least memory of one device; without classes the cheapest AcceleratorClass that has it is taken.",
        unit="bytes",
        pattern=f"^({QUANTITY_PATTERN.strip('^$')})?$",
        max_length=20,
    )
    fallback_seconds: int = option(
        300,
        "A class that found no node for any replica for so long is passed over; 0 waits for ever.",
        unit="seconds",
        ge=0,
        le=86_400,
    )
    spot: bool = option(False, "Without classes: whether one may be taken whose nodes can vanish at short notice.")


class ResourceClaim(CrdObject):
    """A claim of dynamic resource allocation that one replica uses, as in a pod's spec."""

    model_config = validation_rules(
        (
            "(self.resourceClaimName == '') != (self.resourceClaimTemplateName == '')",
            "a resource claim needs either resourceClaimName or resourceClaimTemplateName",
            ".resourceClaimName",
        ),
    )

    name: ClaimName = option(..., "Name of the claim within the pod.")
    resource_claim_name: str = option(
        "", "ResourceClaim of this namespace that all replicas share.", max_length=253, pattern=OPTIONAL_NAME
    )
    resource_claim_template_name: str = option(
        "",
        "ResourceClaimTemplate of this namespace of which each replica gets its own claim.",
        max_length=253,
        pattern=OPTIONAL_NAME,
    )


class Resources(CrdObject):
    """What one replica requires of its node."""

    model_config = validation_rules(
        (
            "self.?resourceClaims.orValue([]).size() == 0 || self.?accelerator.?count.orValue(0) == 0",
            "resources.accelerator.count must be 0 where resources.resourceClaims give the devices",
            ".resourceClaims",
        ),
    )

    accelerator: Accelerator = option(Accelerator(), "GPUs of one replica.")
    resource_claims: list[ResourceClaim] = option(
        [],
        "Devices by dynamic resource allocation instead of a device plugin: the engine then computes with CUDA.",
        max_length=4,
        list_key="name",
    )
    cpu: Cpu = option(
        "2", "Processor cores requested for one replica; also the engine's number of threads on a CPU.", unit="cores"
    )
    memory: Quantity = option("4Gi", "Memory of one replica, as request and limit.", unit="bytes")


class Drain(CrdObject):
    """How a replica leaves."""

    timeout_seconds: int = option(
        600, "How long a leaving replica may finish its requests before it is stopped.", unit="seconds", ge=0, le=86_400
    )


class Toleration(CrdObject):
    """A taint that the pods bear, as in a pod's spec."""

    model_config = validation_rules(
        (
            "!has(self.tolerationSeconds) || self.effect == 'NoExecute'",
            "tolerationSeconds is for effect NoExecute",
            ".tolerationSeconds",
        ),
        (
            "self.operator == 'Equal' || self.value == ''",
            "a toleration with operator Exists takes no value",
            ".value",
        ),
        (
            "self.operator == 'Exists' || self.key != ''",
            "a toleration without a key needs operator Exists",
            ".key",
        ),
    )

    key: str = option("", "Key of the taint; empty with operator Exists matches all.", max_length=316)
    operator: Literal["Equal", "Exists"] = option("Equal", "How key and value are compared.")
    value: str = option("", "Value of the taint.", max_length=63)
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = option(
        "", "Effect of the taint; empty matches all."
    )
    toleration_seconds: int | None = option(
        None, "With NoExecute: how long the pod stays; absent means for ever.", unit="seconds", ge=0, le=86_400
    )


class SecretReference(CrdObject):
    """A secret of the same namespace."""

    name: Name = option(..., "Name of the secret.")


class TopologySpread(CrdObject):
    """How evenly the replicas of a revision lie over parts of the cluster."""

    topology_key: LabelKey = option(
        "topology.kubernetes.io/zone", "Label of nodes; those of the same value are one part."
    )
    max_skew: int = option(1, "By so many replicas at most one part may exceed another.", unit="replicas", ge=1, le=100)
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = option(
        "ScheduleAnyway", "Whether a replica that would lie unevenly starts all the same."
    )


class PodSpec(CrdObject):
    """The few knobs of a pod that a user may turn."""

    model_config = validation_rules(
        (
            "!has(self.labels) || self.labels.all(key, !key.contains('/'))",
            "labels are named without a prefix",
            ".labels",
        ),
        (
            "!has(self.annotations) || self.annotations.all(key, !key.contains('/'))",
            "annotations are named without a prefix",
            ".annotations",
        ),
    )

    labels: dict[ShortName, LabelValue] = option(
        {},
        "Labels of the pods, under user.serving.kvasir.dev/, so that no foreign selector matches.",
        max_length=16,
    )
    annotations: dict[ShortName, NoteValue] = option(
        {},
        "Annotations of the pods, under user.serving.kvasir.dev/, so that none steers what looks at pods.",
        max_length=16,
    )
    topology_spread: list[TopologySpread] = option(
        [], "How evenly replicas lie over zones or nodes.", max_length=4, list_key="topologyKey"
    )
    node_selector: dict[LabelKey, LabelValue] = option({}, "Labels a node must have.", max_length=32)
    tolerations: list[Toleration] = option([], "Taints that the pods bear.", max_length=32)
    image_pull_secrets: list[SecretReference] = option(
        [], "Secrets for pulling the runtime's image.", max_length=8, list_key="name"
    )


class Auth(CrdObject):
    """Who may ask the service."""

    secret_name: str = option(
        "",
        "Secret whose values are keys, one per line, of which a client must send one as bearer token; read again as it changes. While it has none, every request is rejected.",
        max_length=253,
        pattern=OPTIONAL_NAME,
    )


class Observability(CrdObject):
    """What can be seen of requests besides metrics, which are always there."""

    trace_sample_percent: int = option(
        0,
        "Share of requests whose spans are sent to the operator's collector; what its client traces follows the client.",
        unit="percent",
        ge=0,
        le=100,
    )


class InferenceServiceSpec(CrdObject):
    """What the user specifies."""

    model_config = validation_rules(
        (
            "!has(self.autoscaling) || !has(oldSelf.autoscaling) || self.autoscaling.?mode.orValue('Active') in ['Advisory', 'External'] || self.replicas == oldSelf.replicas",
            "spec.replicas has no effect while spec.autoscaling is set: change autoscaling.minReplicas and maxReplicas, or set autoscaling.mode to Advisory or External to scale by hand",
            ".replicas",
        ),
        (
            "self.?resources.?accelerator.?count.orValue(0) + self.?resources.?resourceClaims.orValue([]).size() == 0 || self.?runtime.?pipelineParallelSize.orValue(1) * self.?runtime.?dataParallelSize.orValue(1) * self.?runtime.?nnodes.orValue(1) == 1",
            "an accelerator or claims go with tensorParallelSize, not with stages, data ranks or nodes",
            ".runtime",
        ),
    )

    model: ModelSpec = option(..., "Which model, and under which name clients request it.")
    replicas: int = option(
        1,
        "Number of replicas while spec.autoscaling is absent or its mode is Advisory or External; what kubectl scale writes.",
        unit="replicas",
        ge=0,
        le=MAX_REPLICAS,
    )
    autoscaling: Autoscaling | None = option(
        None, "Lets the operator choose the number of replicas; absent means spec.replicas rules."
    )
    roles: Roles = option(Roles(), "What some of the replicas are for.")
    resources: Resources = option(Resources(), "What one replica requires of its node.")
    runtime: RuntimeOptions = option(RuntimeOptions(), "How the engine runs the model.")
    runtime_version: str = option(
        "",
        "Version of the runtime: a tag of the operator's runtime images, pinned; Follow, the operator's own, which services take in turn after an upgrade; empty keeps the image of a revision. A class's runtimeImage goes first.",
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]*)?$",
        max_length=128,
    )
    parallelism: Literal["Manual", "Auto"] = option(
        "Manual",
        "Auto: a replica on CPUs is of the fewest pods that hold the model, each with a stage.",
    )
    reductions: list[Reduction] = option(
        [],
        "What may be reduced, in this order, where replicas lack memory to start, or sequences keep losing their KV cache and no replica may be added: FewerSequences halves runtime.maxSequences, the others set runtime.kvCacheDtype or runtime.quantization. Other pods begin without.",
        max_length=4,
    )
    rollout: Rollout = option(Rollout(), "How a new revision replaces the old one.")
    drain: Drain = option(Drain(), "How a replica leaves.")
    auth: Auth = option(Auth(), "Who may ask the service.")
    observability: Observability = option(Observability(), "What can be seen of requests besides metrics.")
    pod: PodSpec = option(PodSpec(), "Where the pods may run and how their image is pulled.")

    @field_validator("runtime")
    @classmethod
    def _drafts(cls, runtime: RuntimeOptions) -> RuntimeOptions:
        speculation.check_of_service(runtime.speculation)
        return runtime


class InferenceService(CrdObject):
    """A large language model served by replicas of Kvasir's engine behind one name."""

    spec: InferenceServiceSpec = option(..., "What the user specifies.")
    status: InferenceServiceStatus = option(InferenceServiceStatus(), "What the operator observed.")
