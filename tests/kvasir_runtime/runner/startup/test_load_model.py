"""What a start reports while weights are read."""

import pytest

from kvasir_runtime.runner.startup.load_model import loading_progress
from kvasir_runtime.wire import Progress


def reported(reads: list[tuple[float, int]]) -> list[tuple[float, float]]:
    """Fraction and time left of each report. reads: seconds, and bytes of 1000 that were read by then."""
    found: list[Progress] = []
    times = iter([at for at, _ in reads])
    on_read = loading_progress(found.append, lambda: next(times))
    for _, read in reads:
        on_read(read, 1000)
    return [(one.progress_fraction, one.eta_s) for one in found]


@pytest.mark.parametrize(
    ("reads", "want"),
    [
        # The first piece came after seconds of preparation: its speed is not that of reading.
        ([(5.0, 1), (5.5, 100), (7.0, 400)], [(0.001, -1.0), (0.1, -1.0), (0.4, pytest.approx(2.0 * 0.6 / 0.399))]),
        ([(0.0, 10), (9.0, 20)], [(0.01, -1.0), (0.02, -1.0)]),
        ([(0.0, 500), (0.2, 1000)], [(0.5, -1.0), (1.0, -1.0)]),
        ([(0.0, 0), (2.0, 1000)], [(0.0, -1.0), (1.0, 0.0)]),
    ],
)
def test_a_time_left_is_shown_once_it_means_something(
    reads: list[tuple[float, int]], want: list[tuple[float, float]]
) -> None:
    assert reported(reads) == want


def test_a_hundredth_is_reported_once() -> None:
    assert [fraction for fraction, _ in reported([(0, 1), (0, 2), (0, 11), (0, 12)])] == [0.001, 0.011]
