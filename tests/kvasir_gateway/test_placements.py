"""Lines between gateways: what one writes the other reads, and what no gateway writes is refused."""

import json

import msgspec
import pytest

from kvasir_gateway import placements
from kvasir_gateway.placements import PlacementEnd, RequestPlacement, TenantUse

LARGEST = RequestPlacement(
    id="x" * 128,
    address="[fd00::1]:8000",
    uncached_tokens=1e9,
    cold=True,
    route_hashes=b"\xff" * 8 * placements.MOST_HASHES,
    rented=b"\x00" * 8,
    rent_s=1e9,
)


USE = TenantUse(tenant="models/team-a", requests=1, tokens=-12.5, running=7, minute_requests=0.5, minute_tokens=1e10)


@pytest.mark.parametrize("event", [RequestPlacement(id="a", address="b"), LARGEST, PlacementEnd(id="a"), USE])
def test_an_event_is_one_line_that_is_read_as_it_was(event):
    line = placements.encode(event)
    assert placements.decode(line) == event
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) < placements.MOST_LINE_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "x" * 129},
        {"uncached_tokens": -1},
        {"uncached_tokens": 1e300},
        {"rent_s": -5.0},
        {"rented": "AAAAAAAAAAAAAAAA"},
        {"type": "left"},
        {"address": None},
    ],
)
def test_what_is_out_of_bounds_is_no_event(fields):
    good = {"type": "placed", "id": "a", "address": "b"}
    assert placements.decode(json.dumps(good).encode())
    with pytest.raises(msgspec.DecodeError):
        placements.decode(json.dumps(good | fields).encode())
