"""The forecast refuses only what the sizing after loading would refuse."""

from pathlib import Path

import pytest

from kvasir_api import forecast
from kvasir_runtime.errors import CapacityError, DeviceMemoryError
from kvasir_runtime.runner.startup import capacity
from kvasir_runtime.runner.startup.capacity import MeasuredMemory

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


MIB = 1 << 20


@pytest.mark.parametrize(
    ("weights", "free", "error"),
    [
        (100, 100, None),
        (100, 99, (DeviceMemoryError, "^OutOfDeviceMemory: .* of the device's 200 bytes 99 are free")),
        (201, 99, (CapacityError, "^TooSmall: .* 201 bytes, 200 are there")),
    ],
)
def test_weights_that_others_leave_no_room_for_are_not_too_large(weights, free, error):
    if error is None:
        capacity.check_weights(weights, free, 200, Path("m"))
        return
    with pytest.raises(error[0], match=error[1]):
        capacity.check_weights(weights, free, 200, Path("m"))


@pytest.mark.parametrize(
    ("others", "error", "words"),
    [
        (0, CapacityError, "^TooSmall: no memory is left for the KV cache"),
        (30 * MIB, CapacityError, "^TooSmall: no memory is left"),
        (600 * MIB, DeviceMemoryError, "^OutOfDeviceMemory: no memory .* other programs hold 600 MiB of the device"),
    ],
)
def test_a_cache_that_fits_an_empty_device_is_refused_for_those_who_hold_it(others, error, words):
    memory = MeasuredMemory(
        limit_bytes=1000 * MIB,
        used_bytes=860 * MIB,
        available_bytes=140 * MIB,
        peak_bytes=80 * MIB,
        others_bytes=others,
    )
    with pytest.raises(error, match=words):
        capacity.cache_blocks(memory, 0.9, MIB)
