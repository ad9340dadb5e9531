"""What can go wrong with a local cluster, in words for its user. The command line prints the message and exits 1."""


class LocalClusterError(Exception):
    """Base of all: the message is complete, names the thing and says what to do."""


class MissingToolError(LocalClusterError):
    """A program that is needed and cannot be provided: `go`, a binary that failed to build."""


class MemberFailedError(LocalClusterError):
    """A process of the cluster died or did not become ready in time; the message ends with its last log lines."""


class PortTakenError(LocalClusterError):
    """A port that was asked for, or recorded, belongs to somebody else."""


class StaleStateError(LocalClusterError):
    """The state directory cannot be used as it is."""


class StepFailedError(LocalClusterError):
    """A step after the start of the control plane failed: manifests, waiting for a workload."""
