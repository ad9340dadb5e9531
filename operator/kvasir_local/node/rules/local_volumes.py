"""Decides for the provisioner: which claim gets a directory, its PersistentVolume, which volume is deleted."""

from typing import Any, Final

from kvasir_kube.kinds import Json
from kvasir_local.node.rules.kinds import ConfigError

CLASS_NAME: Final = "standard"
PROVISIONER: Final = "kvasir.dev/local-directory"
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"


def storage_class() -> dict[str, Any]:
    """The default StorageClass of the local cluster."""
    return {
        "metadata": {"name": CLASS_NAME, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def wants_volume(claim: Json) -> bool:
    """Whether a claim waits for a directory of this provisioner."""
    spec, metadata = claim["spec"], claim["metadata"]
    ours = spec.get("storageClassName") == CLASS_NAME and not metadata.get("deletionTimestamp")
    pending = (claim.get("status") or {}).get("phase", "Pending") == "Pending"
    return bool(
        ours and pending and not spec.get("volumeName") and not spec.get("selector") and not spec.get("dataSource")
    )


def volume(claim: Json, directory: str) -> dict[str, Any]:
    """The PersistentVolume for a claim: the directory, reserved for exactly this claim, as large as it asks."""
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "metadata": {"name": f"pvc-{metadata['uid']}", "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": CLASS_NAME,
            "volumeMode": spec.get("volumeMode") or "Filesystem",
            "hostPath": {"path": directory, "type": "DirectoryOrCreate"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


def droppable(found: Json, root: str) -> str | None:
    """The directory to delete with a volume of ours that lost its claim, or None. Ours lie below root."""
    spec, metadata = found["spec"], found["metadata"]
    ours = (metadata.get("annotations") or {}).get(PROVISIONED_BY) == PROVISIONER
    released = (found.get("status") or {}).get("phase") == "Released" and not metadata.get("deletionTimestamp")
    path = str((spec.get("hostPath") or {}).get("path", ""))
    below = path.startswith(f"{root}/") and ".." not in path.split("/")
    return path if ours and released and below and spec.get("persistentVolumeReclaimPolicy") == "Delete" else None


def directory_of(claim: Json | None, bound: Json | None, name: str) -> str:
    """Where the files of a claim lie on this machine. ConfigError until the claim is bound to a directory."""
    if claim is None:
        raise ConfigError(f'persistentvolumeclaim "{name}" not found')
    if bound is None or (claim.get("status") or {}).get("phase") != "Bound":
        raise ConfigError(f'persistentvolumeclaim "{name}" is not bound to a volume yet')
    spec = bound["spec"]
    path = (spec.get("hostPath") or spec.get("local") or {}).get("path")
    if not path:
        raise ConfigError(f"volume {bound['metadata']['name']} is no directory of this machine (hostPath or local)")
    return str(path)
