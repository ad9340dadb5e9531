"""Which layers are on the host: as many as fit, evenly spread, and none where that would save nothing."""

import pytest

from kvasir_api.weight_offload import chosen


@pytest.mark.parametrize(
    ("layer_bytes", "limit_bytes", "want"),
    [
        ([10] * 8, 80, (0, 1, 2, 3, 4, 5, 6, 7)),
        ([10] * 8, 10_000, (0, 1, 2, 3, 4, 5, 6, 7)),
        ([10] * 8, 40, (1, 3, 5, 7)),
        ([10] * 8, 39, (1, 4, 7)),
        ([10] * 8, 29, ()),
        ([10] * 8, 0, ()),
        ([10] * 2, 1000, ()),
        ([10, 90, 10, 90, 10, 90], 60, ()),
        ([90, 10, 90, 10, 90, 10], 60, (1, 3, 5)),
    ],
)
def test_as_many_layers_as_the_limit_holds_are_on_the_host(layer_bytes, limit_bytes, want):
    assert chosen(layer_bytes, limit_bytes) == want
