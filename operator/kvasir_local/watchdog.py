"""Stops a cluster when its owner dies, however it dies: `python -m kvasir_local.watchdog`.

Started by `control_plane` for clusters with an owner (tests). It outlives the owner by the few seconds that it needs.
"""

import argparse
import os
import select
import sys
from pathlib import Path

from kvasir_local import processes
from kvasir_local.processes import ProcessIdentity


def main() -> None:
    parser = argparse.ArgumentParser(prog="kvasir_local.watchdog")
    parser.add_argument("--owner-pid", type=int, required=True)
    parser.add_argument("--owner-start-ticks", type=int, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    arguments = parser.parse_args()
    wait_for_end(ProcessIdentity(pid=arguments.owner_pid, start_ticks=arguments.owner_start_ticks))

    from kvasir_local.control_plane import ControlPlane  # loaded only when the owner is gone

    stopped = ControlPlane(state_dir=arguments.state_dir).stop()
    sys.stdout.write(f"the owner, pid {arguments.owner_pid}, is gone; stopped {', '.join(stopped) or 'nothing'}\n")


def wait_for_end(owner: ProcessIdentity) -> None:
    """Returns when this process has ended."""
    try:
        descriptor = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return
    try:
        if processes.alive(owner):
            select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
