"""What a start reports while weights are read, and which of them it leaves on the host."""

from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.overlapping import WeightCopies
from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.runner.startup import host_resources, placement
from kvasir_runtime.runner.startup.load_model import load_model, loading_progress
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


@pytest.mark.parametrize(
    ("layers", "limit_bytes", "copies", "why"),
    [
        (4, 10**6, None, "is for CUDA devices: on a CPU the weights are in the host's memory as they are"),
        (4, 10**6, WeightCopies(), ""),
        (4, 300_000, WeightCopies(), "--weights-host-bytes 300,000 must hold 3 layers of up to 123,392 bytes, of 4"),
        (2, 10**6, WeightCopies(), "must hold 3 layers of up to 123,392 bytes, of 2"),
        (4, 1 << 40, WeightCopies(), "--weights-host-bytes 1,099,511,627,776: this process may use"),
    ],
)
def test_layers_stay_on_the_host_where_that_is_possible(
    tmp_path: Path, layers: int, limit_bytes: int, copies: WeightCopies | None, why: str
) -> None:
    folder = checkpoints.write(tmp_path / "m", checkpoints.Shape(num_layers=layers))
    options = ServeOptions(model=str(folder), device="cpu", dtype="float32", weights_host_bytes=limit_bytes)
    device = placement.choose_device("cpu")
    if why:
        with pytest.raises(StartError, match=why):
            load_model(options, folder, device, REFERENCE, lambda progress: None, copies)
        return
    loaded = load_model(options, folder, device, REFERENCE, lambda progress: None, copies)
    assert loaded.host_weights_bytes == 4 * 123_392
    assert loaded.weights_bytes == 4 * sum(
        t.numel() for t in checkpoints.random_weights(checkpoints.Shape(num_layers=4)).values()
    )
    assert host_resources.memory_limit_bytes() < 1 << 40


@pytest.mark.parametrize(
    ("weights", "kv", "copies", "why"),
    [
        (60, 60, WeightCopies(), "--weights-host-bytes 60 and --kv-host-bytes 60: this process may use 64 bytes"),
        (0, 65, WeightCopies(), "--kv-host-bytes 65: this process may use 64 bytes"),
        (32, 32, WeightCopies(), "--weights-host-bytes 32 must hold 3 layers"),  # both are pinned, and may be
        (0, 1 << 40, None, ""),  # on a CPU the second is a file
    ],
)
def test_what_is_pinned_on_the_host_is_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: int, kv: int, copies: WeightCopies | None, why: str
) -> None:
    folder = checkpoints.write(tmp_path / "m", checkpoints.Shape(num_layers=4))
    options = ServeOptions(
        model=str(folder), device="cpu", dtype="float32", weights_host_bytes=weights, kv_host_bytes=kv
    )
    device = placement.choose_device("cpu")
    if not why:
        load_model(options, folder, device, REFERENCE, lambda progress: None, copies)
        return
    monkeypatch.setattr(host_resources, "memory_limit_bytes", lambda: 64)
    with pytest.raises(StartError, match=why):
        load_model(options, folder, device, REFERENCE, lambda progress: None, copies)
