"""Collectives of ranks with a card each: tensors by torch.distributed, with NCCL between CUDA devices, messages by the
group of their host. On CPUs, for tests, tensors go by gloo.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from kvasir_runtime.errors import RankLostError, StartError
from kvasir_runtime.kernels.collectives import Collectives


class TorchCollectives:
    """One rank's part of a group; see `kernels.collectives.CardCollectives`. Made by `joined`.

    host: the group through which messages go, of the same ranks.
    """

    def __init__(self, host: Collectives, device: torch.device) -> None:
        self.rank, self.ranks, self.device = host.rank, host.ranks, device
        self._host = host

    @property
    def failure(self) -> str:
        """The host group's."""
        return self._host.failure

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
        """What a card computes for an operation that others do not join would never end: NCCL ends it."""
        first = not self._host.failure
        self._host.abort(why)
        if first and dist.is_initialized() and dist.group.WORLD is not None:
            with contextlib.suppress(RuntimeError):  # of gloo, whose operations end with their processes
                dist.group.WORLD.abort()

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


def joined(host: Collectives, device: torch.device, meeting: Path) -> TorchCollectives:
    """Wait for the other ranks, and connect the cards. meeting: a new file of them, kept as long as they live.

    Raises StartError where the cards cannot exchange, and RankLostError where a rank is missing.
    """
    for library in ("NCCL", "GLOO"):  # all ranks are on this host, and nothing has to listen to others
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    made = TorchCollectives(host, device)
    host.gather(torch.zeros(1))  # or a rank that has ended would be waited for until NCCL's own limit
    store = FileStore(str(meeting), host.ranks)
    where: dict[str, object] = {"rank": host.rank, "world_size": host.ranks}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        where["device_id"] = device  # connects now, not at the first sum
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, **where)  # type: ignore[arg-type]
        made.all_reduce(torch.zeros(1, device=device))
    except RuntimeError as error:
        raise StartError(f"the devices of {host.ranks} ranks cannot exchange: {error}") from error
    return made
