"""What the processes of the control plane share: log format, signals, open files, and one line for an error that ends
them."""

import asyncio
import gc
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
COLLECTED_AFTER: Final = (50_000, 4, 5)
"""New objects, some 5 MB, that start a search of these; and searches of a generation that start one of the next."""


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


def collect_rarely() -> None:
    """Called when a process that keeps much has read it: what is there now is never searched for garbage again, and
    what comes is rarely.

    Python searches after every 700 new objects, and now and then all of them. The operator makes a hundred thousand in
    a tick and keeps millions; most are free of cycles and freed at once by their reference counts. It took a quarter
    of a tick.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


def listening(host: str, port: int) -> socket.socket:
    """A TCP port that listens: who connects waits until it is served. host: an address, `::` for every one, of IPv4
    too. Raises OSError."""
    host = present(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server(
        (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=host == names.ALL_ADDRESSES
    )


def present(host: str) -> str:
    """An address to listen on, where `::` is that of IPv4 if this machine has no IPv6."""
    return "0.0.0.0" if host == names.ALL_ADDRESSES and not socket.has_dualstack_ipv6() else host  # noqa: S104


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Called in the running loop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
