"""Progress on a terminal and without one."""

import io

from kvasir_local.progress import TerminalProgress


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_without_a_terminal_a_wait_is_said_once_per_subject():
    stream = io.StringIO()
    progress = TerminalProgress(stream)
    for second in range(3):
        progress.waiting(f"waiting for etcd… {second} s")
    progress.waiting("waiting for kubectl… 0 s")
    progress.done("ready")
    assert stream.getvalue() == "waiting for etcd… 0 s\nwaiting for kubectl… 0 s\nready\n"


def test_on_a_terminal_the_waiting_line_is_replaced():
    stream = Screen()
    progress = TerminalProgress(stream)
    progress.waiting("waiting for etcd… 0 s")
    progress.done("ready")
    assert stream.getvalue() == "\r\x1b[2Kwaiting for etcd… 0 s\r\x1b[2Kready\n"
