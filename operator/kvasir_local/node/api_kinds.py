"""Kinds that only the process node uses, beside those of `kvasir_kube.kinds`."""

from typing import Final

from kvasir_kube.kinds import Kind

NODE: Final = Kind(kind="Node", plural="nodes", namespaced=False)
LEASE: Final = Kind(group="coordination.k8s.io", kind="Lease", plural="leases")
CONFIG_MAP: Final = Kind(kind="ConfigMap", plural="configmaps")
SECRET: Final = Kind(kind="Secret", plural="secrets")
VOLUME: Final = Kind(kind="PersistentVolume", plural="persistentvolumes", namespaced=False)
STORAGE_CLASS: Final = Kind(group="storage.k8s.io", kind="StorageClass", plural="storageclasses", namespaced=False)
CORE_EVENT: Final = Kind(kind="Event", plural="events")
"""The old kind, since `kubectl describe` shows first and last time and count from it."""


def token_request(service_account: str) -> Kind:
    """The token subresource of one service account, to which a TokenRequest is posted."""
    return Kind(kind="TokenRequest", plural=f"serviceaccounts/{service_account}/token")
