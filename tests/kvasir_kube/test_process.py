"""A process of the control plane ends with one line for what its user can mend."""

import asyncio
import gc
import os
import resource
import signal
import socket

import pytest

from kvasir_kube import process
from kvasir_kube.errors import KubeError


async def fail(error):
    raise error


@pytest.mark.parametrize("error", [KubeError("no usable configuration"), OSError("address already in use")])
def test_an_error_outside_of_the_process_is_one_line(capsys, error):
    with pytest.raises(SystemExit) as ended:
        process.run(fail(error))
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"kvasir: {error}\n"


def test_an_interrupt_before_the_signals_are_handled_is_no_traceback():
    with pytest.raises(SystemExit) as ended:
        process.run(fail(KeyboardInterrupt()))
    assert ended.value.code == 130


def test_an_error_of_the_process_itself_is_raised():
    with pytest.raises(ZeroDivisionError):
        process.run(fail(ZeroDivisionError()))


def test_a_port_takes_connections_before_it_is_served():
    with process.listening("127.0.0.1", 0) as port:
        socket.create_connection(port.getsockname()).close()
        with pytest.raises(OSError, match="in use"):
            process.listening(*port.getsockname())


def test_a_port_of_every_address_takes_ipv4_too():
    with process.listening("::", 0) as port:
        socket.create_connection(("127.0.0.1", port.getsockname()[1])).close()
        if port.family == socket.AF_INET6:
            socket.create_connection(("::1", port.getsockname()[1])).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_sets_the_stop_event(number):
    stop = process.stop_event()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(stop.wait(), 60)


def test_a_process_may_open_as_many_files_as_the_system_lets_it():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = []

    async def main() -> None:
        seen.append(resource.getrlimit(resource.RLIMIT_NOFILE))

    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, most[1]), most[1]))
    try:
        process.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert seen == [(most[1], most[1])]


def test_what_a_process_has_read_is_searched_for_garbage_once():
    limits = gc.get_threshold()
    try:
        process.collect_rarely()
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold() == process.COLLECTED_AFTER
    finally:
        gc.unfreeze()
        gc.set_threshold(*limits)
