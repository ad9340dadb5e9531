"""Servers for suites that start one for each test or file: one for each set of options, kept while it is used.

Runs in the environment of python/requirements.txt. KVASIR_PYTHON: the interpreter that has kvasir; KVASIR_MODEL: the
folder of the model that every server serves, under the names that a suite uses.
"""

import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fakes.api_process import ApiProcess, api_process

MODEL = Path(os.environ["KVASIR_MODEL"])
COMMAND = (os.environ["KVASIR_PYTHON"], "-m", "kvasir_runtime", "serve")
OPTIONS = ("--device", "cpu", "--kv-cache-tokens", "65536")
MAX_SERVERS = 2
"""At a time: each holds some 500 MB."""


class StandingServers:
    """Servers by their options, of which the last used ones go on."""

    def __init__(self) -> None:
        self._running: OrderedDict[tuple[str, ...], tuple[ApiProcess, ExitStack]] = OrderedDict()

    def serving(self, options: Sequence[str]) -> ApiProcess:
        """A server with these options besides OPTIONS, ready."""
        key = tuple(options)
        if key not in self._running:
            while len(self._running) >= MAX_SERVERS:
                self._running.popitem(last=False)[1][1].close()
            stack = ExitStack()
            self._running[key] = stack.enter_context(api_process(MODEL, *OPTIONS, *key, command=COMMAND)), stack
        self._running.move_to_end(key)
        return self._running[key][0]

    def close(self) -> None:
        """End them all."""
        while self._running:
            self._running.popitem()[1][1].close()
