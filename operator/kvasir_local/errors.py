"""Errors of the local cluster. The command line prints the message and exits with code 1."""


class LocalClusterError(Exception):
    """Base of all: the message is complete, names the thing and says what to do."""


class MissingToolError(LocalClusterError):
    """A program that is needed and cannot be provided: `go`, a binary that failed to build."""


class ComponentFailedError(LocalClusterError):
    """A process of the cluster died or did not become ready in time; the message ends with its last log lines."""


class PortTakenError(LocalClusterError):
    """A requested or recorded port is used by another process."""


class StaleStateError(LocalClusterError):
    """The state directory cannot be used as it is."""


class StepFailedError(LocalClusterError):
    """A step after the start of the control plane failed: manifests, waiting for a workload."""
