"""What the processes of the control plane share: log format, signals, open files, and one line for an error that ends
them."""

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any, Final

from kvasir_api import names
from kvasir_kube.errors import KubeError

BACKLOG: Final = 128


def run(main: Coroutine[Any, Any, None], *, verbose: bool = False) -> None:
    """Run a process until main returns. An error of the API server or the system is one line and the exit code."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # A connection to each pod is an open file, and many systems begin with 1,024 of them.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        asyncio.run(main)
    except (KubeError, OSError) as error:
        sys.stderr.write(f"{names.REFUSAL_PREFIX}{error}\n")
        sys.exit(names.EXIT_REFUSED)
    except KeyboardInterrupt:
        sys.exit(130)


def listening(host: str, port: int) -> socket.socket:
    """A TCP port that listens: who connects waits until it is served. host: an address. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Called in the running loop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
