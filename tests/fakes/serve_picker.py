"""The picker as a process of its own: `python -m fakes.serve_picker DIRECTORY STATE_PORT STRATEGY [PROFILE]`.

Its services are read from standard input, a line of JSON for each: {"NAME": [[POD, HTTP_PORT, OPS_PORT, ROLE], ...]};
with the first line they are listed. A list is of the URLs of all gateways. It ends with its input. PROFILE: a file for
what the profiler of Python counted.
"""

import asyncio
import cProfile
import io
import json
import os
import sys
from pathlib import Path
from typing import cast

from fakes.cluster import FakeCluster
from fakes.gateway import NO_HOLD, FakeObjects, RunningPod, tenants_secret
from kvasir_api import names
from kvasir_api.tenant_keys import TenantKeys
from kvasir_gateway.choose import ChoicePolicy, Strategy
from kvasir_gateway.picker import app
from kvasir_gateway.picker.audit_log import AuditLog
from kvasir_gateway.picker.tenant_source import TenantSource
from kvasir_kube import kinds, process
from kvasir_kube.state_reader import StateReader


async def main(directory: Path, state_port: int, strategy: Strategy) -> None:
    """Serve until the input ends. Lines of the audit log go nowhere, but are written."""
    objects, secrets, stop = FakeObjects(), FakeCluster(), asyncio.Event()
    objects.synced.clear()
    await secrets.put(kinds.SECRET, tenants_secret(TenantKeys()))
    with io.FileIO(os.devnull, "wb") as nowhere:
        audit = AuditLog(nowhere)
        settings = app.PickerSettings(
            directory=directory, hold=NO_HOLD, policy=ChoicePolicy(strategy=strategy), audit=audit.write
        )
        async with StateReader() as reader:
            listening = process.listening("127.0.0.1", state_port)
            tenants = TenantSource(secrets, names.SYSTEM_NAMESPACE)
            reading = asyncio.create_task(_read(objects, stop))
            await app.run(settings, state_port=listening, objects=objects, states=reader, tenants=tenants, stop=stop)
            await reading
        audit.close()


async def _read(objects: FakeObjects, stop: asyncio.Event) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        found = json.loads(line)
        if isinstance(found, list):
            objects.gateway_urls = found
            continue
        for name, pods in found.items():
            running = [(RunningPod(*pod), role) for *pod, role in pods]
            objects.serve(name, *(pod for pod, _ in running))
            for pod, role in running:
                if role:
                    objects.edit(name, pod, annotations={names.ANNOTATION_SERVING_ROLE: role})
        objects.synced.set()
    stop.set()


if __name__ == "__main__":
    _, folder, port, by, *profile = sys.argv
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    process.run(main(Path(folder), int(port), cast(Strategy, by)))
    if profile:
        profiler.dump_stats(profile[0])
