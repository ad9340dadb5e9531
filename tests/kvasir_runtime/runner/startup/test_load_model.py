"""What a start reports while weights are read, and which of them it leaves on the host."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import checkpoints, encoder_checkpoints, integer_checkpoints
from fakes.checkpoints import Shape
from fakes.overlapping import WeightCopies
from fakes.ranks import group_of
from kvasir_api.options import ServeOptions
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import CapacityError, ModelError, StartError
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.layers import sharding
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.startup import host_resources, placement
from kvasir_runtime.runner.startup.load_model import LoadedModel, load_model, loading_progress

ALONE = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}


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


@pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
@pytest.mark.parametrize(
    ("shape", "quantization", "ranks", "why"),
    [
        (
            Shape(),
            "auto",
            3,
            "3 is not possible: 2 key heads can neither be divided among 3 ranks nor be shared by them",
        ),
        (
            Shape(),
            "int8",
            4,
            "4 is not possible in int8: the columns of layers.0.down.weight are no whole groups of 32",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(
    tmp_path: Path, shape: Shape, quantization: str, ranks: int, why: str
) -> None:
    options = ServeOptions.model_validate(
        {"model": str(checkpoints.write(tmp_path / "m", shape)), "device": "cpu", "quantization": quantization}
    )
    with group_of(ranks) as group:
        ops = replace(REFERENCE, collectives=group[0])
        with pytest.raises(StartError, match=f"^--tensor-parallel-size {why}"):
            load_model(options, Path(options.model), placement.choose_device("cpu"), ops, lambda _: None)


@pytest.mark.parametrize(("family", "held"), [("qwen3_moe", range(4, 8)), ("llama", None)])
def test_a_rank_reads_its_experts(tmp_path: Path, family: str, held: range | None) -> None:
    model = str(checkpoints.write(tmp_path / "m", Shape(family=family)))
    given = {"model": model, "device": "cpu", "tensor_parallel_size": 2, "enable_expert_parallel": True}
    options = ServeOptions.model_validate(given)
    with group_of(2) as group:
        ops, device = replace(REFERENCE, collectives=group[1]), placement.choose_device("cpu")
        if held is None:
            why = "^--tensor-parallel-size 2 with --enable-expert-parallel is not possible: the model has no experts"
            with pytest.raises(StartError, match=why):
                load_model(options, Path(model), device, ops, lambda _: None)
            return
        spec = load_model(options, Path(model), device, ops, lambda _: None).model.spec
    assert spec.experts is not None
    assert spec.experts.held == held


@pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
def test_columns_in_an_order_of_their_own_are_not_divided(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape(hidden_size=128, head_dim=32, intermediate_size=256))
    integer_checkpoints.convert(folder, integer_checkpoints.Style(method="gptq", act_order=True))
    options = ServeOptions(model=str(folder), device="cpu")
    with group_of(2) as group:
        ops = replace(REFERENCE, collectives=group[1])
        with pytest.raises(StartError, match="in an order of their own for each rank"):
            load_model(options, folder, placement.choose_device("cpu"), ops, lambda _: None)


@pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
def test_ranks_together_hold_the_weights_once_and_norms_each(tmp_path: Path) -> None:
    shape = Shape(num_layers=4)
    options = ServeOptions(model=str(checkpoints.write(tmp_path / "m", shape)), device="cpu", dtype="float32")
    weights, device = checkpoints.random_weights(shape), placement.choose_device("cpu")
    norms = sum(tensor.numel() for name, tensor in weights.items() if "norm" in name)
    with group_of(2) as group:
        found = [
            load_model(
                options, Path(options.model), device, replace(REFERENCE, collectives=member), lambda _: None
            ).weights_bytes
            for member in group
        ]
    assert found == [4 * (sum(tensor.numel() for tensor in weights.values()) + norms)] * 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kv_host_bytes": 1 << 20}, "--kv-host-bytes is not possible for an encoder"),
        ({"max_model_len": 101}, "max_model_len 101 is more than the model's 100 positions"),
    ],
)
def test_an_encoder_refuses_what_it_cannot_follow(tmp_path: Path, options: dict[str, int], why: str) -> None:
    encoder_checkpoints.write(tmp_path, "xlm-roberta")
    with pytest.raises((StartError, ModelError), match=why):
        load_model(
            ServeOptions(model=str(tmp_path), device="cpu", dtype="float32", **options),
            tmp_path,
            placement.choose_device("cpu"),
            REFERENCE,
            lambda progress: None,
        )


@pytest.mark.parametrize(("longest", "asked", "want"), [(0, 0, 100), (64, 0, 64), (512, 0, 100), (64, 80, 80)])
def test_the_longest_text_is_that_of_sentence_transformers(tmp_path: Path, longest: int, asked: int, want: int) -> None:
    encoder_checkpoints.write(tmp_path, "roberta")
    encoder_checkpoints.sentence_transformers(tmp_path, "mean_tokens", longest=longest)
    options = ServeOptions(model=str(tmp_path), device="cpu", dtype="float32", max_model_len=asked)
    loaded = load_model(options, tmp_path, placement.choose_device("cpu"), REFERENCE, lambda progress: None)
    assert loaded.max_model_len == want


def test_an_encoder_is_not_divided_among_ranks(tmp_path: Path) -> None:
    encoder_checkpoints.write(tmp_path, "bert")
    config = read_config(tmp_path)
    with pytest.raises(ValueError, match="encoders are computed by one process"):
        sharding.shard(family_of(config).spec(config), Rank(0, 2))


@pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
@pytest.mark.parametrize(("tensor", "quantization"), [(1, "auto"), (2, "auto"), (1, "int8")])
def test_a_stage_holds_its_layers_alone(tmp_path: Path, tensor: int, quantization: str) -> None:
    """Cut where the first, which has table and head too, has about as many bytes as the other."""
    shape = Shape(num_layers=6, vocab_size=1000, tied=True)
    given = {"tensor_parallel_size": tensor, "pipeline_parallel_size": 2, "quantization": quantization}
    model = str(checkpoints.write(tmp_path / "m", shape))
    options = ServeOptions.model_validate({"model": model, "device": "cpu", "dtype": "float32", **given})
    device = placement.choose_device("cpu")
    with group_of(2 * tensor, stages=2) as group:
        first, last = (
            load_model(options, Path(model), device, replace(REFERENCE, collectives=group[rank]), lambda _: None)
            for rank in (0, tensor)
        )
    alone = load_model(options.model_copy(update=ALONE), Path(model), device, REFERENCE, lambda _: None)
    cut = first.model.spec.layers.stop
    assert (first.model.spec.layers, last.model.spec.layers) == (range(cut), range(cut, 6))
    assert 0 < cut < 3
    assert (first.model.spec.head, last.model.spec.head) == ("vocabulary", "none")
    norms = (tensor - 1) * (2 * 6 + 1) * shape.hidden_size * 4
    assert first.weights_bytes == last.weights_bytes == alone.weights_bytes + norms
    assert first.token_bytes == last.token_bytes == alone.token_bytes * (6 - cut) // 6 // tensor
    assert min(first.other_bytes, last.other_bytes) == 0 < max(first.other_bytes, last.other_bytes)


@pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
@pytest.mark.parametrize("quantization", ["auto", "int8"])
def test_copies_of_experts_count_where_the_cache_has_a_size_and_where_memory_decides(
    tmp_path: Path, quantization: str
) -> None:
    """Two on each rank of what 4 own experts take, of all layers and two more; with them just no cache fits."""
    model = str(checkpoints.write(tmp_path / "m", Shape(family="qwen3_moe", num_layers=4, hidden_size=256)))
    given = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "quantization": quantization}
    plain = ServeOptions.model_validate({"model": model, "device": "cpu", "dtype": "float32", **given})
    copying = plain.model_copy(update={"enable_eplb": True, "eplb_config": '{"num_redundant_experts": 4}'})
    device = placement.choose_device("cpu")
    with group_of(2) as group:
        ops = replace(cpu_ops(), collectives=group[0])

        def loaded(options: ServeOptions) -> LoadedModel:
            return load_model(options, Path(model), device, ops, lambda _: None)

        without, found = loaded(plain), loaded(copying)
        assert (without.other_bytes, without.copies_bytes) == (0, 0)
        experts = {name: shape for name, shape in parameter_shapes(found.model.spec).items() if ".experts." in name}
        each = sum(math.prod(shape) for shape in experts.values()) // 4 // 4 * 4
        assert found.other_bytes == found.copies_bytes > 0
        if quantization == "auto":
            assert found.copies_bytes == each * 2 * (4 + 2)
        else:
            assert each * 2 * (4 + 2) // 5 < found.copies_bytes < each * 2 * (4 + 2) // 2
        share = host_resources.memory_limit_bytes() // 2 - found.weights_bytes // 2
        tokens = (share - found.copies_bytes // 2) // found.token_bytes
        assert loaded(plain.model_copy(update={"kv_cache_tokens": tokens})).copies_bytes == 0
        with pytest.raises(CapacityError, match=r"and copies of experts \(--enable-eplb\) \d+ MiB, but"):
            loaded(copying.model_copy(update={"kv_cache_tokens": tokens}))


@pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
def test_more_stages_than_layers_are_refused(tmp_path: Path) -> None:
    model = str(checkpoints.write(tmp_path / "m", Shape()))
    options = ServeOptions(model=model, device="cpu", pipeline_parallel_size=3)
    with group_of(3, stages=3) as group:
        ops = replace(REFERENCE, collectives=group[0])
        with pytest.raises(StartError, match=r"^--pipeline-parallel-size 3 is not possible: 2 layers are fewer than 3"):
            load_model(options, Path(model), placement.choose_device("cpu"), ops, lambda _: None)
