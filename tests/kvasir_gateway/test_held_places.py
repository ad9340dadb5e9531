"""The document between picker and relay: newer and older ones understand each other."""

import pytest

from kvasir_gateway import held_places
from kvasir_gateway.held_places import HeldPlace


@pytest.mark.parametrize("eta_s", [None, 0.0, 12.5])
def test_what_is_written_is_read(eta_s):
    places = {"id": HeldPlace(place=1, of=2, phase="image", eta_s=eta_s)}
    assert held_places.decode(held_places.encode(places)) == places


def test_fields_that_are_not_known_are_skipped():
    document = b'{"id": {"place": 1, "of": 1, "phase": "queue", "more": [1]}}'
    assert held_places.decode(document) == {"id": HeldPlace(place=1, of=1, phase="queue")}
