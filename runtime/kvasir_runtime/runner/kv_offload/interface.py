"""What the runner requires of the second tier, whatever memory it is in. Chosen by `runner.startup.host_tier`."""

from typing import Protocol

from kvasir_runtime.core.plan import HostChanges, StepPlan, TransferResults


class BlockTransfers(Protocol):
    """Copies blocks between device and host beside the steps. Called by the engine's thread; never waits for a copy,
    except `completed` with a time to wait.
    """

    @property
    def hash_salt(self) -> bytes:
        """Secret from which hashes of its blocks begin."""

    @property
    def num_slots(self) -> int:
        """Blocks that the host holds at most."""

    def submit(self, plan: StepPlan) -> None:
        """Begin the copies of a plan. Every plan comes here, in order, also one without any."""

    def completed(self, wait_s: float) -> TransferResults:
        """What ended since the last call. wait_s: how long to wait for something to end, where anything is copied."""

    def changes(self) -> HostChanges | None:
        """What the host holds and did not at the last call, and the reverse; None for no difference."""

    def forget(self) -> None:
        """Erase what the host holds, and what submitted plans are still to copy there."""
