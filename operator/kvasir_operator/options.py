"""Options of `kvasir operator`, declared once: flags, help, defaults and bounds."""

from typing import Self

from pydantic import model_validator

from kvasir_api import names
from kvasir_api.option_fields import OptionsBase, option
from kvasir_api.served_names import RESERVE_MODEL_NAME, reserved_names
from kvasir_operator.observed.settings import RESYNC_S


class OperatorOptions(OptionsBase):
    """Options of the operator's process."""

    namespace: str = option("", "Serve only this namespace. Default: all.", metavar="NAME")
    gateway_url: str = option("", "Base URL of the gateway, shown in status.address, without /v1.", metavar="URL")
    hub_endpoint: str = option(
        "",
        "Base URL of the hub, or of a mirror, for hf:// models. Default: https://huggingface.co.",
        metavar="URL",
    )
    runtime_image: str = option(names.IMAGE_RUNTIME, "Image of pods with accelerators.", metavar="IMAGE")
    runtime_image_cpu: str = option(names.IMAGE_RUNTIME_CPU, "Image of pods without accelerators.", metavar="IMAGE")
    allow_model_dir: tuple[str, ...] = option(
        (), "Directory of the nodes below which file:// models may lie; may be repeated. Default: none.", metavar="DIR"
    )
    reserve_model_name: tuple[str, ...] = option((), RESERVE_MODEL_NAME, metavar="NAME=NAMESPACE")
    model_cache_dir: str = option(
        "",
        "Directory of the nodes in which each namespace has one (of user 65532) with the models that its replicas"
        " share. A small pod fetches them there; replicas only read it. Default: each pod fetches its own.",
        metavar="DIR",
    )
    model_cache_bytes: int = option(
        0,
        "What models of a namespace may take on a node in --model-cache-dir; those used least recently give way."
        " 0: all of the disk.",
        unit="bytes",
        ge=0,
    )
    model_prefetch_nodes: int = option(
        0,
        "Nodes beside those of its replicas to which the model of a service that may be scaled up is fetched ahead,"
        " into --model-cache-dir.",
        ge=0,
        le=64,
    )
    model_image_volumes: bool = option(
        False,
        "Mount oci:// models that are images as image volumes, which the kubelet pulls and replicas share on a node."
        " For clusters with ImageVolume (Kubernetes 1.35, or its feature gate). Artifacts cannot be mounted so.",
    )
    otlp_traces_endpoint: str = option(
        "", "OTLP collector (HTTP) for requests of services with spec.observability.traceSamplePercent.", metavar="URL"
    )
    host: str = option("127.0.0.1", "Where both ports listen; :: is every address, of IPv4 too.", metavar="ADDRESS")
    metrics_port: int = option(9090, "Port of /metrics; 0 takes a free one.", ge=0, le=65535)
    health_port: int = option(8081, "Port of /livez, /readyz and /startupz; 0 takes a free one.", ge=0, le=65535)
    interval: float = option(2.0, "Time between two readings of all pods.", unit="seconds", ge=0.2, le=60.0)
    speed_window: float = option(
        60.0,
        "Time under load over which replicas are judged; after two such stretches one may count as slow.",
        unit="seconds",
        ge=0.5,
        le=3600.0,
    )
    resync: float = option(
        RESYNC_S,
        "Time between two lists of everything, which find what the watches missed.",
        unit="seconds",
        ge=0.2,
        le=3600.0,
    )
    kube_api_qps: float = option(
        200.0,
        "Requests to the API server per second in the long run; watches and the Lease do not count.",
        ge=1.0,
        le=10_000.0,
    )
    kube_api_burst: int = option(
        400, "Requests to the API server that may be sent at once after a rest.", ge=1, le=100_000
    )
    lease_namespace: str = option(
        "",
        "Namespace of the Lease by which one of several operators becomes the leader. Default: no election.",
        metavar="NAME",
    )
    record_readings: str = option(
        "",
        "Directory into which the autoscaler's readings and decisions are written as JSON lines, for kvasir replay.",
        metavar="DIR",
    )
    pod_tls: bool = option(
        False,
        "Ports of replicas speak TLS, with certificates of an authority that the operator keeps in the namespace of its"
        " Lease and renews; gateways follow. A change replaces the replicas of"
        " a few services at a time (--fleet-max-unavailable).",
    )
    fleet_max_unavailable: int = option(
        1,
        "Services that may replace their replicas at once for a change that no spec requests: an edit of an"
        " AcceleratorClass, a new runtime image (spec.runtimeVersion: Follow), --pod-tls. The others wait for their"
        " turn. 0: none does.",
        unit="services",
        ge=0,
        le=100_000,
    )
    kubeconfig: str = option("", "Default: $KUBECONFIG, or the pod's service account.", metavar="FILE")
    verbose: bool = option(False, "Log each reconcile.")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        reserved_names(self.reserve_model_name)
        if self.model_prefetch_nodes and not self.model_cache_dir:
            raise ValueError("--model-prefetch-nodes needs --model-cache-dir, into which models are fetched")
        if self.pod_tls and not self.lease_namespace:
            raise ValueError("--pod-tls needs --lease-namespace, where the authority's key is kept")
        return self
