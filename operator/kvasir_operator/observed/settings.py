"""What the installation decides, from the operator's flags: images, allowed directories, the gateway's address."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvasir_api import names

RESYNC_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """runtime_image serves on accelerators, runtime_image_cpu elsewhere. model_dirs: absolute directories of the nodes
    below which file:// models may lie. reserved_names: namespaces by the model names that are theirs alone.
    gateway_url: base URL that status shows to clients, empty without a gateway.
    hub_endpoint: base URL of the hub of hf:// models, empty for huggingface_hub's own.
    model_cache_dir: directory of the nodes with one for each namespace in which its pods share what they fetch, empty
    for none; model_cache_bytes: what that may take, 0 without a limit; model_prefetch_nodes: nodes of a service that
    have its model before a replica comes. model_image_volumes: whether the kubelet mounts the images of oci:// models.
    otlp_traces_endpoint: the collector of services whose requests are traced, empty without one.
    system_namespace: where operator and gateway run. speed_window_s: stretch of load over which replicas are judged.
    namespace: the only one whose services are served, empty for all. interval_s: between two readings of all pods.
    resync_s: mean time between two lists of everything. signs_calls: whether pods take calls that change something from
    this operator alone, by its keys in system_namespace. pod_tls: whether pods' ports speak TLS. readings_dir: where
    the autoscaler's readings are written, empty for nowhere. fleet_max_unavailable: services that may be on their
    way to a change of the installation at once."""

    runtime_image: str = names.IMAGE_RUNTIME
    runtime_image_cpu: str = names.IMAGE_RUNTIME_CPU
    model_dirs: tuple[str, ...] = ()
    reserved_names: Mapping[str, str] = field(default_factory=dict)
    gateway_url: str = ""
    hub_endpoint: str = ""
    model_cache_dir: str = ""
    model_cache_bytes: int = 0
    model_prefetch_nodes: int = 0
    model_image_volumes: bool = False
    otlp_traces_endpoint: str = ""
    system_namespace: str = names.SYSTEM_NAMESPACE
    speed_window_s: float = 60.0
    namespace: str = ""
    interval_s: float = 2.0
    resync_s: float = RESYNC_S
    signs_calls: bool = False
    pod_tls: bool = False
    readings_dir: str = ""
    fleet_max_unavailable: int = 1
