"""Collectives of ranks with a card each: tensors by torch.distributed, with NCCL between CUDA devices, messages by the
group of their host. On CPUs, for tests, tensors go by gloo.
"""

import contextlib
import os
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from kvasir_runtime.errors import RankLostError, StartError
from kvasir_runtime.kernels.collectives import Collectives

POLL_S = 0.1


class TorchCollectives:
    """One rank's part of a group; see `kernels.collectives.CardCollectives`. Tensors only once it is connected.

    host: the group through which messages go, of the same ranks. fuller_bytes: by how much another rank's card has less
    free than this one's, at rank 0.
    """

    def __init__(self, host: Collectives, device: torch.device) -> None:
        self.rank, self.ranks, self.device = host.rank, host.ranks, device
        self.fuller_bytes = 0
        self._host, self._lock, self._has_ended = host, threading.Lock(), False

    @property
    def failure(self) -> str:
        """The host group's."""
        return self._host.failure

    def connect(self, meeting: int) -> None:
        """Wait for the other ranks, and connect the cards. meeting: descriptor of an empty file that all have.

        Raises StartError where the cards cannot exchange, and RankLostError where a rank is missing.
        """
        for library in ("NCCL", "GLOO"):  # all ranks are on this host, and nothing has to listen to others
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
        taken = self._taken_bytes()  # first, since a card that cannot be used fails here, and is not waited for
        every = self._host.gather(torch.tensor([taken]))
        self.fuller_bytes = int(every.max()) - taken
        failed: list[Exception] = []
        connecting = threading.Thread(target=self._connect, args=(meeting, failed), daemon=True, name="connect")
        connecting.start()
        while connecting.is_alive():  # NCCL waits minutes for a rank that has ended
            connecting.join(POLL_S)
            if self.failure:
                raise RankLostError(self.failure)
        if failed:
            raise StartError(f"the devices of {self.ranks} ranks cannot exchange: {failed[0]}") from failed[0]

    def all_reduce(self, x: Tensor) -> Tensor:
        """In place, in the type of x."""
        x = x.contiguous()
        self._enqueue(lambda: dist.all_reduce(x))
        return x

    def gather(self, x: Tensor) -> Tensor:
        """To rank 0 alone."""
        x = x.contiguous()
        out = x.new_empty((self.ranks, *x.shape)) if self.rank == 0 else None
        parts = None if out is None else list(out.unbind(0))
        self._enqueue(lambda: dist.gather(x, parts))
        return x.unsqueeze(0) if out is None else out

    def share(self, x: Tensor) -> Tensor:
        """In place."""
        self._enqueue(lambda: dist.broadcast(x, 0))
        return x

    def broadcast(self, message: bytes) -> bytes:
        """By the hosts."""
        return self._host.broadcast(message)

    def end_start(self) -> None:
        """As the host group."""
        self._host.end_start()

    def abort(self, why: str) -> None:
        """What a card computes for an operation that others do not join would never end: NCCL ends it, and then waits
        for graphs that have such operations: in a thread for which no other waits.
        """
        self._host.abort(why)
        with self._lock:
            first, self._has_ended = not self._has_ended, True
        if first and dist.is_initialized():
            threading.Thread(target=_abort, daemon=True, name="abort").start()

    def _taken_bytes(self) -> int:
        """Of this card's memory, by all that use it, this process with its context among them."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return int(total - free)

    def _connect(self, meeting: int, failed: list[Exception]) -> None:
        on_card = self.device.type == "cuda"
        try:
            dist.init_process_group(
                "nccl" if on_card else "gloo",
                store=FileStore(f"/proc/self/fd/{meeting}", self.ranks),
                rank=self.rank,
                world_size=self.ranks,
                device_id=self.device if on_card else None,  # connects now, not at the first sum
            )
        except Exception as error:  # noqa: BLE001 - of one of three libraries
            failed.append(error)

    def _enqueue(self, operation: Callable[[], object]) -> None:
        cause: RuntimeError | None = None
        if not self.failure:
            try:
                operation()
            except RuntimeError as error:
                cause = error
        if self.failure:
            raise RankLostError(self.failure) from cause
        if cause:
            raise cause


def _abort() -> None:
    if dist.group.WORLD is not None:
        with contextlib.suppress(RuntimeError):  # of gloo, whose operations end with their processes
            dist.group.WORLD.abort()
