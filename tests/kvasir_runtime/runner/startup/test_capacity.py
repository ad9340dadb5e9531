"""The forecast refuses only what the sizing after loading would refuse."""

import pytest

from kvasir_api import forecast
from kvasir_runtime.errors import CapacityError
from kvasir_runtime.runner.startup import capacity

CONFIG = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "intermediate_size": 128,
}
MODEL = forecast.shape(CONFIG)
BLOCK = 16 * MODEL.kv_bytes_per_token("float32")
WEIGHTS = MODEL.weights_bytes("float32")


@pytest.mark.parametrize(
    ("requested", "spare", "fits"), [(0, BLOCK, True), (0, BLOCK - 1, False), (33, 2 * BLOCK, True), (33, BLOCK, False)]
)
def test_forecast_before_loading(requested, spare, fits):
    def check():
        capacity.check_forecast(
            MODEL, limit_bytes=WEIGHTS + spare, fraction=1.0, dtype="float32", requested=requested, block_size=16
        )

    if fits:
        check()
    else:
        with pytest.raises(CapacityError, match=r"^TooSmall: the weights .* may be used"):
            check()
