"""When a service that sleeps will take requests: by how long it took before, and only where that is known."""

import pytest

from kvasir_gateway.wake_forecast import WakeForecast


def woken(*durations):
    forecast = WakeForecast()
    for at, duration in enumerate(durations):
        forecast.begin("s", 1000.0 * at)
        forecast.end("s", 1000.0 * at + duration, woken=True)
    forecast.begin("s", 9000.0)
    return forecast


@pytest.mark.parametrize(
    ("durations", "waited_s", "cold_start_s", "reported_s", "eta_s"),
    [
        ((), 0, 0, -1.0, None),
        ((), 0, 0, 7.0, 7.0),
        ((), 5, 20, -1.0, 17.0),
        ((30.0,), 10, 99, -1.0, 20.0),
        ((30.0, 40.0, 300.0), 0, 0, -1.0, 40.0),
        ((999.0, 10.0, 10.0, 10.0, 10.0, 10.0), 0, 0, -1.0, 10.0),
        ((30.0,), 31, 0, -1.0, None),
        ((30.0,), 31, 0, 4.0, 4.0),
    ],
)
def test_what_is_left_is_the_usual_time_less_what_has_passed(durations, waited_s, cold_start_s, reported_s, eta_s):
    found = woken(*durations).eta_s("s", 9000.0 + waited_s, cold_start_s=cold_start_s, reported_s=reported_s)
    assert found == eta_s


def test_a_wake_begins_with_the_first_request_that_waits():
    forecast = woken(30.0)
    forecast.begin("s", 9010.0)
    assert forecast.eta_s("s", 9010.0, cold_start_s=0) == 20.0


def test_a_wake_that_all_left_teaches_nothing():
    forecast = woken()
    forecast.end("s", 9001.0, woken=False)
    forecast.begin("s", 9100.0)
    assert forecast.eta_s("s", 9100.0, cold_start_s=0) is None


def test_services_that_are_gone_are_forgotten():
    forecast = woken(30.0)
    forecast.keep(frozenset({"other"}))
    assert forecast.eta_s("s", 9000.0, cold_start_s=0) is None


def test_starts_that_take_what_they_took_are_foretold_within_a_fifth():
    """The issue's bound of the median error, over starts that vary by a tenth."""
    forecast, errors = WakeForecast(), []
    for at in range(40):
        whole_s, began_s = 20.0 + (at * 7 % 5 - 2), 1000.0 * at
        forecast.begin("s", began_s)
        if at:
            for waited_s in range(0, 12, 3):
                eta_s = forecast.eta_s("s", began_s + waited_s, cold_start_s=0)
                assert eta_s is not None
                errors.append(abs(eta_s - (whole_s - waited_s)) / (whole_s - waited_s))
        forecast.end("s", began_s + whole_s, woken=True)
    assert sorted(errors)[len(errors) // 2] <= 0.2
