"""Where the files of one local cluster lie. It creates nothing and reads no file."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePaths:
    """Paths below one state directory. `root` is absolute: components run with other working directories."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig, the one that people use."""
        return self.root / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        """Kubeconfigs of the components, the audit policy, the token file."""
        return self.root / "config"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def overlay(self) -> Path:
        """The generated kustomization that `up` applies."""
        return self.root / "overlay"

    @property
    def volumes(self) -> Path:
        """Directories of claims in a cluster with kubelets: namespace/claim."""
        return self.root / "volumes"

    def log(self, component: str) -> Path:
        return self.logs / f"{component.replace('/', '-')}.log"

    def node(self, name: str) -> Path:
        """The state directory that is handed to one process node."""
        return self.root / "nodes" / name

    def temporary(self) -> tuple[Path, ...]:
        """What describes a running cluster and is removed with it."""
        return (self.etcd, self.pki, self.config, self.overlay, self.root / "nodes", self.volumes, self.kubeconfig)

    def occupied(self) -> list[str]:
        """Names below the root that a cluster would overwrite and that exist."""
        return [path.name for path in (*self.temporary(), self.logs, self.state) if path.exists()]
