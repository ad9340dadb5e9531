"""When an engine is stalled, when it is dead, and what is no reason to believe either."""

import pytest

from kvasir_runtime.server.watchdog import LOOK_S, Watchdog


class Watched:
    """A watchdog that looks at an engine which sends a message at the given times, and then never again."""

    def __init__(self, announced_s=0.5, *, dead_s=30.0, busy=False):
        self.watchdog = Watchdog(dead_s)
        self.watchdog.is_busy = lambda: busy
        self.now, self.heard_at, self.announced_s = 100.0, 100.0, announced_s
        self.look()

    def look(self, after_s=LOOK_S):
        self.now += after_s
        self.watchdog.look(self.now, self.heard_at, self.announced_s)

    def speak(self):
        self.heard_at = self.now

    def until(self, word):
        """Seconds of silence until it is so; None after 20 minutes."""
        began = self.now
        while not getattr(self.watchdog, word):
            self.look()
            if self.now - began > 1200:
                return None
        return self.now - began


@pytest.mark.parametrize(
    ("announced_s", "busy", "stalled_s", "dead_s"),
    [
        (0.5, False, 1.5, 30.0),  # idle, or with short steps
        (0.5, True, 10.0, 30.0),  # the machine is busy
        (2.0, False, 6.0, 30.0),  # a long chunk of a prompt
        (8.0, True, 24.0, 80.0),
        (30.0, False, 90.0, 300.0),  # the first step, or a compilation
        (0.0, False, 90.0, 300.0),  # not announced
    ],
)
def test_silence_is_judged_by_what_was_announced(announced_s, busy, stalled_s, dead_s):
    watched = Watched(announced_s, busy=busy)
    assert watched.until("stalled") == stalled_s
    assert watched.until("dead") == dead_s - stalled_s
    assert watched.watchdog.stalled_s == dead_s
    assert f"silent for {dead_s:.0f} s" in watched.watchdog.words


def test_a_message_ends_a_stall_and_a_death():
    watched = Watched()
    watched.until("dead")
    watched.speak()
    watched.look()
    assert (watched.watchdog.stalled, watched.watchdog.dead, watched.watchdog.stalled_s) == (False, False, 0.0)
    assert watched.until("stalled") == 1.5


def test_without_a_limit_it_may_stall_but_never_dies():
    watched = Watched(dead_s=0)
    assert watched.until("stalled") == 1.5
    assert watched.until("dead") is None


def test_time_in_which_this_process_did_not_run_does_not_count():
    watched = Watched()
    for _ in range(2):
        watched.look(3600.0)
    assert not watched.watchdog.stalled, "both were suspended, and messages wait to be read"
    watched.look(3600.0)
    assert watched.watchdog.stalled


def test_a_busy_engine_that_stops_is_found_out():
    watched = Watched(busy=True)
    for _ in range(20):
        watched.look()
    assert not watched.watchdog.stalled
    watched.watchdog.is_busy = lambda: False
    watched.look()
    assert watched.watchdog.stalled
