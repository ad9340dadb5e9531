"""Settings of one node process; created by `__main__`."""

from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from kvasir_local.node.rules.backoff import BackoffPolicy
from kvasir_local.node.rules.images import Programs
from kvasir_local.node.rules.node_object import HOST_IP


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """state_dir: absolute; pods, volumes and logs lie below it. api_host, api_port: the API server as pods reach it.

    keep: host directories that the programs need, wherever they lie. host_ip: the node's address, which pods in the
    host's network share.
    """

    node_name: str
    state_dir: Path
    pods: IPv4Network
    backoff: BackoffPolicy
    programs: Programs
    api_host: str
    api_port: int
    keep: tuple[str, ...]
    host_ip: str = HOST_IP

    def pod_dir(self, uid: str) -> Path:
        """The directory of a pod, deleted with it."""
        return self.state_dir / "pods" / uid

    def log(self, uid: str, container: str, run: int) -> Path:
        """The log of one run of a container; runs count from 0, as restartCount does."""
        return self.pod_dir(uid) / "containers" / container / f"{run}.log"

    def message(self, uid: str, container: str, run: int) -> Path:
        """The termination message file of one run."""
        return self.pod_dir(uid) / "containers" / container / f"{run}.message"

    @property
    def volumes_dir(self) -> Path:
        """Directories of claims: namespace/claim."""
        return self.state_dir / "volumes"
