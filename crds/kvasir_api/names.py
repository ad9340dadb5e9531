"""Names that cross a process border: the API group, labels, annotations, ports, managers, conditions and reasons.

A name is written here once and imported everywhere else; manifests are checked against it by a test.
"""

from typing import Final

GROUP: Final = "serving.kvasir.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
SHORT_NAME: Final = "infsvc"
CATEGORY: Final = "inference"
ROUTE_KIND: Final = "ModelRoute"
ROUTE_PLURAL: Final = "modelroutes"
ACCELERATOR_KIND: Final = "AcceleratorClass"
ACCELERATOR_PLURAL: Final = "acceleratorclasses"
TENANT_KIND: Final = "Tenant"
TENANT_PLURAL: Final = "tenants"

SYSTEM_NAMESPACE: Final = "kvasir-system"
OPERATOR: Final = "kvasir-operator"
GATEWAY: Final = "kvasir-gateway"

# Images by repository basename; the registry and the tag are the installation's choice.
IMAGE_OPERATOR: Final = "kvasir-operator"
IMAGE_GATEWAY: Final = "kvasir-gateway"
IMAGE_RUNTIME: Final = "kvasir-runtime"
IMAGE_RUNTIME_CPU: Final = "kvasir-runtime-cpu"

# Field managers of server-side apply.
MANAGER: Final = "kvasir-operator"
STATUS_MANAGER: Final = "kvasir-operator-status"

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
PART_OF: Final = "kvasir"
COMPONENT_RUNTIME: Final = "runtime"
LABEL_SERVICE: Final = f"{GROUP}/service"
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_ROLE: Final = f"{GROUP}/role"
ROLE_SERVE: Final = "serve"
ROLE_NODE: Final = "node"
"""A pod that computes for another one, node 0 of its replica. No client, gateway or Service finds it."""
ROLE_LOST: Final = "lost"
"""A pod of the role `node` that is still there although its StatefulSet has gone, on a cluster node that is lost."""
ROLE_QUARANTINE: Final = "quarantine"
"""A pod whose device failed, which keeps it from others while another replica takes its place."""
LABEL_LEADER: Final = f"{GROUP}/leader"
"""The pod of node 0, on the other nodes of its replica."""
COMPONENT_INSPECT: Final = "inspect"
LABEL_INSPECTS: Final = f"{GROUP}/inspects"
"""The service whose model a pod looks at. Such a pod has no LABEL_SERVICE, by which gateways and Services find replicas."""
COMPONENT_FETCH: Final = "fetch"
LABEL_FETCHES: Final = f"{GROUP}/fetches"
"""The service whose model a pod fetches into the cache of its node; it has no LABEL_SERVICE either."""
USER_PREFIX: Final = f"user.{GROUP}/"
"""Of labels and annotations that a service's author gave the pods."""
ANNOTATION_DRAIN: Final = f"{GROUP}/draining"
ANNOTATION_SERVING_ROLE: Final = f"{GROUP}/serving-role"
"""On a replica's pod, set by the operator: what requests the gateway sends there. Without it all."""
SERVING_ROLE_PREFILL: Final = "prefill"
"""None, while others serve; it computes prompts for them."""
ANNOTATION_QUARANTINED_AT: Final = f"{GROUP}/quarantined-at"
"""When a pod was quarantined last."""
ANNOTATION_MASTER_ADDRESS: Final = f"{GROUP}/master-address"
"""On the StatefulSet with the other nodes of a replica: the address of node 0 that they were given."""
ANNOTATION_OPS_KEYS: Final = f"{GROUP}/ops-keys"
"""Public keys of the operator, one per line: whose calls to its ops port a pod accepts."""
SIGNING_SECRET: Final = "kvasir-operator-signing"
"""The Secret with the keys that sign these calls, in the operator's own namespace."""
LABEL_TENANT_KEYS: Final = f"{GROUP}/tenant-keys"
"""`true` on a Secret whose values are keys of tenants; the operator reads no other for them."""
TENANT_KEYS_ROLE: Final = "kvasir-tenant-keys"
"""The ClusterRole that the owner of a namespace binds to the operator there, so that it may read the keys of tenants."""
GATEWAY_KEYS_SECRET: Final = "kvasir-gateway-keys"
"""The Secret with the hashes of all tenants' keys, in the operator's own namespace: what gateways compare with."""
ANNOTATION_TLS: Final = f"{GROUP}/tls"
"""`true` on a pod whose ports speak TLS, with a certificate of the operator's authority."""
POD_TLS_SECRET: Final = "kvasir-pod-tls"
"""The Secret with that certificate and its key, one in each namespace with services: the operator writes no other there."""
NODE_KEYS_SECRET: Final = "kvasir-node-keys"
"""The Secret with the keys by which nodes of a replica recognize one another, in each namespace with such services: an entry for each of them."""
NODE_KEY_MOUNT: Final = "/node-key"
PORT_NODES: Final = 29501
PORT_NODES_NAME: Final = "nodes"
ENV_NODE_RANK: Final = "KVASIR_NODE_RANK"
ENV_NODE_GROUP: Final = "KVASIR_NODE_GROUP"
ENV_MASTER_ADDRESS: Final = "KVASIR_MASTER_ADDRESS"
"""Of a replica of several pods, what differs between them and between replicas: the rest of their templates does not."""
POD_CA_ENTRY: Final = "pod-ca.crt"
"""Of GATEWAY_KEYS_SECRET: the certificates of the operator's authority, by which gateways verify pods."""
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"

CONTAINER_RUNTIME: Final = "runtime"
PORT_HTTP: Final = 8000
PORT_HTTP_NAME: Final = "http"
PORT_OPS: Final = 8001
PORT_OPS_NAME: Final = "ops"
PORT_KV: Final = 8002
PORT_KV_NAME: Final = "kv"
"""On which replicas of a service fetch blocks from one another."""
PORT_GATEWAY: Final = 8080
PORT_GATEWAY_STATE: Final = 8081
PATH_STATE: Final = "/state"
PATH_DRAIN: Final = "/drain"
PATH_RESET_PREFIX_CACHE: Final = "/reset_prefix_cache"
PATH_PREFIXES: Final = "/prefixes"
MOST_PREFIXES: Final = 64
TARGET_PREFIXES: Final = f"{PATH_PREFIXES}?top={MOST_PREFIXES}"
"""What a replica requests of each of its peers while it starts, and of one that leaves; the operator signs it."""
PATH_PEERS: Final = "/peers"
PATH_PREFETCH: Final = "/prefetch"
PATH_PLACEMENTS: Final = "/placements"
PATH_CHOICES: Final = "/choices"
PATH_ENDED_REQUESTS: Final = "/ended_requests"
PATH_CONTINUATION_KEYS: Final = "/continuation_keys"
MOST_PEERS: Final = 3
"""Ready replicas that the operator names to one that starts, which reads the prefixes of each."""
PATH_LIVEZ: Final = "/livez"
PATH_READYZ: Final = "/readyz"
PATH_STARTUPZ: Final = "/startupz"
MODEL_MOUNT: Final = "/models"
KEYS_MOUNT: Final = "/keys"
SOURCE_MOUNT: Final = "/source"
ENV_SOURCE_SETTINGS: Final = "KVASIR_SOURCE_SETTINGS"
"""A directory with what is needed to reach a model's source, one file each, see docs/hub.md. None has to be there."""
ENV_MODEL_CACHE: Final = "KVASIR_MODEL_CACHE"
"""Where models of buckets, registries and archives are kept."""
ENV_MODEL_CACHE_BYTES: Final = "KVASIR_MODEL_CACHE_BYTES"
"""What all models of a cache that pods share may take, also of the hub's."""
ENV_MODEL_CACHE_READ_ONLY: Final = "KVASIR_MODEL_CACHE_READ_ONLY"
"""The directory of a cache into which another pod fetches the models, so that a runtime waits for them."""
ENV_STARTUP_CACHE: Final = "KVASIR_STARTUP_CACHE"
"""Where a runtime keeps what a start measured, without --startup-cache."""
STARTUP_CACHE: Final = ".start"
"""Its directory in a cache of models that pods share. No model's name begins with a dot."""
STARTUP_CACHE_MOUNT: Final = "/start"
"""Where a runtime that only reads such a cache may still write that directory."""
OPS_KEYS_MOUNT: Final = "/ops-keys"
OPS_KEYS_VOLUME: Final = "ops-keys"
TLS_MOUNT: Final = "/tls"
TLS_CERTIFICATE: Final = "tls.crt"
TLS_KEY: Final = "tls.key"
TLS_CA: Final = "ca.crt"
PATH_TERMINATION_LOG: Final = "/dev/termination-log"
ENV_MEMORY_LIMIT: Final = "KVASIR_MEMORY_LIMIT_BYTES"
"""The container's memory limit, where no control group enforces it."""
ENV_LISTEN_ADDRESS: Final = "KVASIR_LISTEN_ADDRESS"
"""Where the ports of a pod listen. A node whose pods share its network sets it to the pod's own address."""
ALL_ADDRESSES: Final = "::"
"""Every address of a pod's network, of IPv4 too: `kubectl port-forward` comes to 127.0.0.1."""
ENV_SERVICE: Final = "KVASIR_SERVICE"
"""NAMESPACE/NAME of the pod's service; ids of what only the pod holds carry a hash of it."""
ENV_MODEL_URI: Final = "KVASIR_MODEL_URI"
"""The model's uri as the service names it; messages show it in place of the directory where the model is mounted."""

HEADER_DESTINATION: Final = "x-gateway-destination-endpoint"
HEADER_CLUSTER: Final = "x-kvasir-cluster"
HEADER_SERVICE: Final = "x-kvasir-service"
"""NAMESPACE/NAME of the service that answers, in the head of a response. In a request of the relay: that goes on."""
HEADER_FALLBACK: Final = "x-kvasir-fallback"
"""In the head of a response: a fallback of its ModelRoute answers, for this reason."""
HEADER_BACKEND: Final = "x-kvasir-backend"
HEADER_BACKEND_MODEL: Final = "x-kvasir-backend-model"
"""Set by the picker: the external backend that answers, and its name of the model."""
HEADER_BACKEND_FAILED: Final = "x-kvasir-backend-failed"
"""In an answer to the relay: the backend did not answer the request, and no byte was sent."""
HEADER_TRIED: Final = "x-kvasir-tried"
"""Set by the relay: external backends (NAMESPACE/ROUTE/BACKEND) that failed under the request."""
HEADER_STREAM: Final = "x-kvasir-stream"
"""Set by the picker where the answer is a stream of events, which must not be silent for long."""
HEADER_TIMEOUT: Final = "x-envoy-upstream-rq-timeout-ms"
"""Envoy's own, set by the picker alone: how long the whole answer may take."""
HEADER_RETRIED_STATUSES: Final = "x-envoy-retriable-status-codes"
"""Envoy's own, set by the picker alone: with which statuses of a replica the next one gets the request, beside 503."""
HEADER_REFER: Final = "x-kvasir-refer"
"""Set by the picker: where the request came from. A replica that has no room for it answers 307 with this address, and
Envoy asks the picker again, in place of 429."""
HEADER_ORIGINAL_URL: Final = "x-envoy-original-url"
"""Envoy's own: the request comes back from a replica that answered so."""
HEADER_ATTEMPT: Final = "x-envoy-attempt-count"
"""Envoy's own, in what a replica gets: 2 where another one had the request before and gave no answer to it."""
HEADER_RETRY_COUNT: Final = "x-stainless-retry-count"
"""How often a client has sent a request before: of the clients of OpenAI and Anthropic."""
HEADER_INFLIGHT_ID: Final = "x-kvasir-inflight-id"
HEADER_PRIORITY: Final = "x-kvasir-priority"
HEADER_REQUEST_ID: Final = "x-request-id"
HEADER_SESSION: Final = "x-session-id"
"""Requests with the same value go to the same replica, while it takes requests."""
HEADER_KV_PEER: Final = "x-kvasir-kv-peer"
"""Set by the gateway alone: where another replica gives out blocks, and of how much of the request's text it holds them:
`10.0.0.2:8002;bytes=4096`."""
HEADER_TTFT: Final = "x-slo-ttft-ms"
MAX_TTFT_MS: Final = 3_600_000.0
"""Of an objective for the first token."""
HEADERS_RATE_LIMIT: Final = tuple(
    f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)
"""Of answers: what a tenant may send in a minute, what is left of it, and when all of it will be there again."""
HEADER_CONTINUATION: Final = "x-kvasir-continuation"
"""`pieces` in a request: its stream has the pieces of a continuation token as they come. In the head of a response: it
does."""
HEADER_ANSWER: Final = "x-kvasir-answer"
"""In the head of such a stream: the id of its answer. In a request of the relay: that of the answer that goes on."""
HEADER_RESUME: Final = "x-kvasir-resume"
"""`1` in a request to the gateway: its stream goes on at another replica where its own fails. `0`: it does not, whatever
its route says."""
HEADER_RELAYED: Final = "x-kvasir-relayed"
"""Id of a request that comes from the gateway's relay."""
COMMENT_CONTINUATION: Final = "kvasir-continuation"
"""Begins the comments of a stream that hold a continuation token, or a piece of one."""
COMMENT_HANDED_OVER: Final = "kvasir-handed-over"
"""First word of the comment with which a replica stops before the end of a stream whose token it sent in pieces. A code
follows, and after the comment the error."""
COMMENT_HELD: Final = "kvasir-held"
"""First word of the comment that tells a client of the gateway how its request waits."""

# Condition types. Ready is always present; the others only while True.
CONDITION_READY: Final = "Ready"
CONDITION_RECONCILING: Final = "Reconciling"
CONDITION_STALLED: Final = "Stalled"
CONDITION_METRICS_STALE: Final = "MetricsStale"
CONDITION_CAPACITY_LIMITED: Final = "CapacityLimited"
CONDITION_DEGRADED: Final = "Degraded"
CONDITION_NAME_CONFLICT: Final = "NameConflict"
CONDITION_SCALING_AT_MAX: Final = "ScalingAtMax"
CONDITION_KV_CACHE_EXHAUSTED: Final = "KvCacheExhausted"
CONDITION_IMBALANCED: Final = "Imbalanced"
CONDITION_SCALING_ACTIVE: Final = "ScalingActive"

REASONS: Final = {
    "AllReplicasReady": "Every wanted replica is ready and runs the current revision.",
    "MinimumAvailable": "Replicas of the current revision serve; more are starting.",
    "MinimumNotAvailable": "No replica of the service is ready yet.",
    "ScaledToZero": "The service runs no replica: spec.replicas is 0, or spec.autoscaling.minReplicas is 0 and no request came within idleSeconds.",
    "InspectingModel": "A small pod without accelerator reads the model's config, so that what cannot fit is refused before a replica starts.",
    "ModelDownloading": "Replicas fetch the model; the message says how far they are.",
    "ModelLoading": "Replicas run and load the model.",
    "ModelUnavailable": "The model cannot be fetched: its source is not reached, refuses access or lacks it, a checksum is wrong, or the disk is full. The message says which; it is tried again.",
    "ModelLoadFailed": "The runtime refused the model or its options; the message says why. Change the spec or the model.",
    "Unschedulable": "The scheduler finds no node for a replica.",
    "VolumeInUse": "A replica waits for the model's claim, which only one node at a time may mount and another one has; the message names both and says what to do.",
    "NodesNotMade": "Pods of a replica of several pods are not made, as where a quota or a policy of the namespace refuses them; the events of the StatefulSet that the message names say why.",
    "InvalidSpec": "A field of the spec cannot be applied; the message names it.",
    "TooSmall": "The model's weights and the least KV cache do not fit the memory that was asked for.",
    "Unsupported": "No AcceleratorClass that the service may get computes in a type that the spec requests; the message names the field.",
    "BadPatch": "An operation in podPatches of the service's AcceleratorClass does not apply, or changes a field that the operator owns; the message names it.",
    "NameConflict": "Another service already serves a model name of the spec, or did when this one claimed it; clients reach this one as NAMESPACE/NAME. Of Stalled: an object that the service needs exists under that name and belongs to something else; nothing is written behind it.",
    "KeysMissing": "The Secret of spec.auth does not exist or holds no key, so that every request is rejected. Of a Tenant: its Secret does not exist, lacks the label or holds no key of its own; the message says which.",
    "KeysExceeded": "Of a Tenant: keys are left out, since the tenant has more than 1,000, those in their grace included, or its namespace names more than 100 Secrets or takes more than its share of what gateways can be given; the message says which. Gateways accept the number of keys in status.keys.",
    "KeysPublished": "Of a Tenant: gateways accept its keys.",
    "KeysUnread": "Of a Tenant: the operator may not read its Secret, since the ClusterRole kvasir-tenant-keys is not bound to it in the namespace. Where that holds for all tenants of the namespace, gateways leave it to the replicas to check keys.",
    "KeysUnpublished": "Of a Tenant: what changed cannot be written to the Secret that gateways read, which keep what they had, keys that were revoked too; the message has the API server's error.",
    "NoDevice": "A replica finds no CUDA device, although the service requests one; the message says what is missing.",
    "DriverTooOld": "The NVIDIA driver of a node is too old for the CUDA of the runtime; the message has both versions.",
    "OutOfDeviceMemory": "A device had too little free memory for a replica to start; the message has the numbers. Other programs hold it, or a step needs more than was forecast.",
    "RollingOut": "Replicas of a new revision replace those of the old one.",
    "RolloutPaused": "spec.rollout.paused stops the rollout where it is.",
    "RolloutHeld": "The new revision is worse than spec.rollout.analysis allows; the rollout stands still.",
    "RolledBack": "The spec's revision was rolled back; the last good one serves until the spec changes or promotes it.",
    "Scaling": "The number of replicas is being changed.",
    "Progressing": "Objects of the service are being created or changed.",
    "ProgressDeadlineExceeded": "The rollout made no progress for longer than its deadline.",
    "CrashLooping": "Replicas crash repeatedly.",
    "ImagePullFailed": "The runtime's image cannot be pulled; the message has the image and the registry's words. Correct the operator's image, the class's runtimeImage or spec.pod.imagePullSecrets; replicas follow by themselves.",
    "OutOfMemory": "Replicas are killed repeatedly at their memory limit; the message names the field to raise.",
    "QuotaExceeded": "The namespace's quota does not allow another object; the message is the API server's.",
    "Forbidden": "The API server does not allow an object, because a permission is missing or a policy of the namespace forbids it; the message is the API server's.",
    "Rejected": "The API server finds an object invalid, or a policy or webhook denies it; the message is the API server's.",
    "MaximumReached": "The load requires more replicas than spec.autoscaling.maxReplicas allows.",
    "ReadingsMissing": "Pods or gateways did not answer in time; scaling down is held for two minutes. With ScalingActive no ready replica has a usable reading, and the count stays.",
    "ReadingsImplausible": "The readings of a pod contradict themselves and are not used; the message names the pod and the number.",
    "ModeAdvisory": "The autoscaler reports a count and does not set it: spec.replicas determines the count.",
    "ModePaused": "The autoscaler leaves the count where it is.",
    "ModeExternal": "Another autoscaler writes spec.replicas.",
    "SequencesPreempted": "Sequences lose their KV cache to others and are computed again; the message says what is done, or what to do.",
    "Reduced": "Replicas run with less than the spec requests, because it lists what may be reduced; the message names what was.",
    "LoadUneven": "One replica has been much fuller than the others for a minute; the message names it.",
    "LowAcceptance": "Most tokens that replicas draft ahead are rejected, and the spec requests drafts in every step.",
    "ReplicasFailing": "Some replicas fail while others serve.",
    "DeviceFailed": "The device of a replica failed; the message has the Xid or the CUDA error, the node, and whether the pod is quarantined with its device.",
    "SlowerKernels": "Replicas compute with slower kernels than their device has; the message says why.",
    "SlowDecode": "Replicas decode slower than the declared share of what their AcceleratorClass allows; the message has the numbers.",
}
"""Reasons that conditions may carry, each with the sentence that explains it in the documentation."""

EVENTS: Final = {
    "ScaledUp": "The number of wanted replicas rose; the note names the cause, with the numbers.",
    "ScaledDown": "The number of wanted replicas fell; the note names the cause, with the numbers.",
    "ScalingHeld": "A change of replicas was held back because readings are missing.",
    "RevisionCreated": "The spec requests new pods; the note names the revision.",
    "CanaryStep": "A step of the canary has its replicas, or ended; the note says which.",
    "RollingInPlace": "No accelerator could be spared for a new replica, so that old ones leave first although the strategy is Surge.",
    "RolledBack": "The spec's revision was rolled back to the last good one; the note says why.",
    "AcceleratorClassFallback": "An accelerator class found no node for any replica in time, so that the next one is tried.",
    "RolloutComplete": "Every replica runs the current revision.",
    "RoleChanged": "A replica computes prompts for the others from now on, or no longer.",
    "DrainStarted": "A replica finishes its requests before it leaves; it takes no new ones.",
    "Drained": "A replica finished its work, or its drain deadline passed.",
    "ReplicaFailed": "A replica failed; the note has its termination message.",
    "WatchdogRestarted": "The engine of a replica stood still, so that its watchdog ended it and its container is started again; the note has its last words.",
    "ReplicaRegrouped": "A pod of a replica of several pods leaves, or its node 0 has another address or is lost; its pods make room, and a new group takes its place.",
    "DeviceFailed": "The device of a replica failed; the pod is quarantined with it for a while, and another one takes its place.",
    "QuarantinedPodRestored": "A pod that was quarantined with its device is a replica again, since there is no room for another.",
    "QuarantinedPodDeleted": "A pod that was quarantined with its device is deleted, so that the device is free again.",
    "InvalidSpec": "A field of the spec cannot be applied; the note names it.",
    "ModelInspected": "The model's config was read before replicas start; the note has the forecast.",
    "ForecastUnknown": "The model's config could not be read before replicas start, or says too little; they start all the same.",
    "ModelLoadFailed": "The runtime refused the model.",
    "ModelUnavailable": "The model cannot be fetched; the note says why and what to do.",
    "TooSmall": "The model does not fit the memory that was asked for; the note has the numbers.",
    "KeysMissing": "Replicas have no API key, so that they reject every request.",
    "DeviceUnusable": "A replica cannot start on its device: there is none, its driver is too old, or its memory is taken; the note says which.",
    "NameConflict": "A model name of the spec belongs to another service, or the name of an object of the service to something else; the note says which.",
    "Refused": "The API server refuses an object of the service, and retries do not help; the note has its message.",
    "ConflictingWriter": "Another writer keeps changing an object of the service; the operator restores it less often from now on.",
    "Ready": "The service became ready.",
}
"""Reasons of the events that the operator emits (events.k8s.io/v1), each with its meaning."""

EXIT_DEVICE: Final = 3
"""Exit code of `kvasir serve` when its device failed; the line that says so starts with REFUSAL_PREFIX and DEVICE_FAULT."""
DEVICE_FAULT: Final = "DeviceFault: "
EXIT_WATCHDOG: Final = 4
"""Exit code of `kvasir serve` when its engine stood still; the line that says so starts with REFUSAL_PREFIX and WATCHDOG."""
WATCHDOG: Final = "Watchdog: "
EXIT_CODES: Final = {DEVICE_FAULT: EXIT_DEVICE, WATCHDOG: EXIT_WATCHDOG}
"""What the last words of a failure start with, and the exit code; of any other it is 1."""
EXIT_REFUSED: Final = 1
"""Exit code of `kvasir serve` when the model or the options are refused: a retry cannot cure it."""
TOO_SMALL: Final = "TooSmall: "
"""A refusal for want of memory starts with this; the operator makes it the reason TooSmall."""
KEYS_MISSING: Final = "KeysMissing: "
"""A refusal for want of API keys starts with this; the operator makes it the reason KeysMissing."""
MODEL_UNAVAILABLE: Final = "ModelUnavailable: "
"""A refusal because the model could not be fetched starts with this: source, access, version or disk, not the model itself."""
NO_DEVICE: Final = "NoDevice: "
"""A refusal because no CUDA device is there starts with this."""
DRIVER_TOO_OLD: Final = "DriverTooOld: "
"""A refusal because the driver does not run the CUDA of this runtime starts with this."""
OUT_OF_DEVICE_MEMORY: Final = "OutOfDeviceMemory: "
"""A refusal because the device has no memory left for a model that may fit an empty one starts with this."""
REFUSALS: Final = {
    TOO_SMALL: "TooSmall",
    KEYS_MISSING: "KeysMissing",
    MODEL_UNAVAILABLE: "ModelUnavailable",
    NO_DEVICE: "NoDevice",
    DRIVER_TOO_OLD: "DriverTooOld",
    OUT_OF_DEVICE_MEMORY: "OutOfDeviceMemory",
}
"""What a refusal starts with, and the reason that it is in a condition and at /startupz; of any other it is ModelLoadFailed."""
REFUSAL_PREFIX: Final = "kvasir: "
"""The one line that explains EXIT_REFUSED starts with this; it reaches the operator as the container's termination message."""
