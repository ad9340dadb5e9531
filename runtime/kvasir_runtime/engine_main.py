"""The engine process: python -m kvasir_runtime.engine_main, with EngineArgs as JSON on standard input.

Started by the API process, which keeps standard input open as long as it runs; the engine ends with it. Exit code 0
after Shutdown or SIGTERM, 1 after a failure, which the clients got as one line.
"""

import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import msgspec
from pydantic import ValidationError

from kvasir_api import names
from kvasir_api.options import ServeOptions
from kvasir_runtime import log_config, malloc
from kvasir_runtime.engine.client_socket import ClientSocket
from kvasir_runtime.engine.loop import EngineFatalError, one_line
from kvasir_runtime.engine.start import Build, ShutdownRequested, StartupClients, start_engine
from kvasir_runtime.engine.xid_monitor import XidMonitor
from kvasir_runtime.engine_args import XID_NOTE, EngineArgs
from kvasir_runtime.errors import RankLostError, StartError
from kvasir_runtime.wire import EngineFailed

LOG = logging.getLogger("kvasir_runtime.engine")
STDIN = 0


def main(build: Build | None = None, xids: XidMonitor | None = None) -> int:
    """Runs the process; build and xids are replaced by tests. Returns the exit code."""
    malloc.share_arenas()
    gc.disable()  # importing torch makes a million objects that stay: looking at them costs a sixth of that time
    build = build or _real_build()  # takes a second or two, while the parent process finds the model
    try:
        with open(STDIN, "rb", buffering=0, closefd=False) as stdin:
            line = stdin.readline()
        if not line:
            return 1  # the parent process ended, or stops the start
        launch = msgspec.json.decode(line, type=EngineArgs)
        options = ServeOptions.model_validate({**launch.options, "model": launch.model})
    except (msgspec.MsgspecError, ValidationError) as error:
        sys.stderr.write(f"error: the engine arguments on standard input cannot be read: {one_line(error)}\n")
        return 1
    log_config.configure(options.log_format)
    threading.Thread(target=_die_with_parent, daemon=True, name="parent").start()
    socket = ClientSocket(launch.address)
    try:
        note = Path(launch.address.removeprefix("ipc://")).with_name(XID_NOTE)
        return _serve(options, build, socket, xids or XidMonitor(note=note))
    finally:
        socket.close()


def _serve(options: ServeOptions, build: Build, socket: ClientSocket, xids: XidMonitor) -> int:
    clients = StartupClients(socket)
    if options.device != "cpu":
        xids.begin()
    try:
        if options.node_rank:
            _follow(options, clients)
        engine = start_engine(options, build, socket, clients)
        signal.signal(signal.SIGTERM, lambda *_: engine.stop())
        gc.freeze()  # what was loaded stays; without this the first collection stops a request for 0.2 s
        gc.enable()
        clients.follow(engine)
        engine.run()
    except ShutdownRequested:
        return 0
    except (StartError, EngineFatalError, RankLostError) as error:
        # A client that gets the message shows it; without one it goes to the log.
        words = xids.words(one_line(error))
        incurable = isinstance(error, StartError) and not words.startswith(names.DEVICE_FAULT)
        if not clients.send_final(EngineFailed(words, incurable)):
            LOG.error("%s", words)  # noqa: TRY400 - one line for a person, the cause is in it
        return 1
    except Exception as error:
        LOG.exception("the engine failed")
        clients.send_final(EngineFailed(xids.words(f"the engine failed: {type(error).__name__}: {one_line(error)}")))
        return 1
    return 0


def _follow(options: ServeOptions, clients: StartupClients) -> NoReturn:
    """This process is no engine: it computes for that of node 0, and serves no requests."""
    from kvasir_runtime.runner.startup import node_worker

    gc.enable()
    node_worker.follow(options, clients.send)


def _real_build() -> Build:
    # Read once, when torch loads its OpenMP. By default idle threads spin for milliseconds, and where pods share cores
    # they spin on the core that the working thread needs: 64 streams took 28 to 40 s that way and 2 to 3 s without.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not has_cuda_driver():
        # torch imports NVIDIA's Python bindings where they are installed, a fourteenth of its own import, and takes it
        # if they are not; without the driver nothing in them works.
        sys.modules.setdefault("cuda.bindings", None)  # type: ignore[arg-type]
    from kvasir_runtime.runner.startup.build import build

    return build


def has_cuda_driver() -> bool:
    """Whether the library is here through which all of CUDA reaches a card."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _die_with_parent() -> None:
    """Only the end of the input ever comes, when the API process is gone.

    Read without Python's buffer, whose lock a waiting thread would hold while the interpreter shuts down.
    """
    while os.read(STDIN, 4096):
        pass
    os._exit(1)


def _end(code: int) -> NoReturn:
    """Connections and graphs of several cards wait for one another where they are destroyed."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        logging.shutdown()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _end(main())
