"""How long a replica on a real node takes from its exec to a token, and what streams notice of rollouts.

On a cluster of `kvasir local up --kubelet`, which KVASIR_STATE_DIR names: PYTHONPATH=tests python -m bench.real_nodes.

A start: a replica's pod is deleted, and the next one is asked for a streamed answer at its own address, again and again
until there is one. Its exec is the start of the container's first process, by the kernel's clock, which pods share with
their machine. A rollout: two replicas of another revision, under four connections with one stream after another.
"""

import argparse
import contextlib
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Final

from openai import OpenAIError

from kvasir_api import names
from kvasir_local.control_plane import ControlPlane
from outside.real_nodes.service import DEADLINE_S, RealService, StreamLoad

TOKENS: Final = (4096, 8192)
"""Of the KV cache, in turn: each is a revision of its own."""
STARTED: Final = (
    "import os; print(int(open('/proc/1/stat').read().rpartition(')')[2].split()[19]) / os.sysconf('SC_CLK_TCK'))"
)


def main() -> None:
    """One line of JSON for each start and for each rollout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=4)
    options = parser.parse_args()
    service = RealService(ControlPlane(state_dir=Path(os.environ["KVASIR_STATE_DIR"])), "bench")
    try:
        service.put_model()
        service.apply(replicas=1)
        service.until_ready()
        for number in range(options.starts):
            print(json.dumps({"start": number, **started(service)}), flush=True)
        if options.rollouts:
            service.apply(replicas=2, runtime={"kvCacheTokens": TOKENS[-1]})
            service.until_ready()
        for number in range(options.rollouts):
            print(json.dumps({"rollout": number, **rolled_out(service, TOKENS[number % 2])}), flush=True)
    finally:
        service.delete()


def started(service: RealService) -> dict[str, float]:
    """Seconds of one start, from the deletion of the replica before until exec, and from exec."""
    (before,) = service.uids()
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    service.kubectl("delete", "pod", service.pod(), "--wait=false")

    def address() -> str:
        found = [pod for pod in service.pods() if pod["metadata"]["uid"] != before]
        return str((found[0].get("status") or {}).get("podIP", "")) if found else ""

    url = f"http://{service.until(address, 'the next replica has an address')}:{names.PORT_HTTP}"
    deadline = time.monotonic() + DEADLINE_S
    first: list[float] = []
    with service.client(url, timeout_s=30) as client:
        while not first and time.monotonic() < deadline:
            with contextlib.suppress(OpenAIError):
                service.stream(client, 8, began=lambda: first.append(time.clock_gettime(time.CLOCK_BOOTTIME)))
    service.until_ready()
    ready = time.clock_gettime(time.CLOCK_BOOTTIME)
    exec_at = float(service.python(STARTED).stdout)
    return {
        "deleted_to_exec_s": round(exec_at - began, 2),
        "exec_to_first_token_s": round(first[0] - exec_at, 2),
        "exec_to_ready_s": round(ready - exec_at, 2),
    }


def rolled_out(service: RealService, tokens: int) -> dict[str, object]:
    """Seconds of one rollout of two replicas, and how its streams ended."""
    before = service.uids()
    with StreamLoad(service) as load:
        load.until_more()
        began = time.monotonic()
        service.apply(replicas=2, runtime={"kvCacheTokens": tokens})
        service.until(lambda: len(service.uids()) == 2 and not service.uids() & before, "all replicas are others")
        service.until_ready()
        seconds = time.monotonic() - began
        load.until_more()
    return {"seconds": round(seconds, 1), "streams": dict(Counter(load.ends))}


if __name__ == "__main__":
    main()
