"""One rank of a group whose tensors go by torch.distributed: python -m fakes.gloo_rank DESCRIPTOR RANK MEETING.

It prints, as JSON, what the operations gave, and what one says after the group has ended.
"""

import json
import sys

import torch

from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels import backends
from kvasir_runtime.kernels.torch_collectives import TorchCollectives

RANKS = 3


def main() -> None:
    """Every operation, in the types that layers have."""
    descriptor, rank, meeting = (int(argument) for argument in sys.argv[1:])
    group = TorchCollectives(backends.collectives_of(descriptor, rank, RANKS), torch.device("cpu"))
    group.connect(meeting)
    own = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (rank + 1)
    found = {
        "sum": group.all_reduce(own.to(torch.bfloat16)).float().tolist(),
        "sum of columns": group.all_reduce(own.clone()[:, 1]).tolist(),
        "gathered": group.gather(own[:, 1]).tolist(),
        "shared": group.share(torch.arange(4, dtype=torch.int32) * (7 - rank)).tolist(),
        "message": group.broadcast(b"from %d" % rank).decode(),
    }
    group.gather(torch.zeros(1))
    group.abort("rank 2 was killed by SIGKILL")
    try:
        group.all_reduce(own)
    except RankLostError as error:
        found["lost"] = str(error)
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
