"""Between which layers a model is cut: by what a step reads and how fast nodes are, the same on all of them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.checkpoints import Shape
from fakes.ranks import group_of
from kvasir_api.options import ServeOptions
from kvasir_runtime.kernels.collectives import StageCollectives
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.quantized import QuantFormat
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models import registry
from kvasir_runtime.runner.startup import stage_cut
from kvasir_runtime.runner.startup.stage_cut import NodeFigures
from kvasir_runtime.weights.quant_formats import HEAD, PROCESSORS

INT8 = QuantFormat(bits=8)
GIB = 1 << 30


def spec_of(tmp_path: Path, **given: object) -> DecoderSpec:
    config, family = registry.read(checkpoints.write(tmp_path / "m", Shape(**given)), {})
    return family.spec(config)


def lengths(spec: DecoderSpec, nodes: tuple[NodeFigures, ...] = (), **formats: QuantFormat) -> list[int]:
    given = {HEAD: formats["head"]} if formats else {}
    return [len(own) for own in stage_cut.cut(spec, given, 4, PROCESSORS, 2, nodes)]


def test_a_table_that_is_looked_up_takes_no_time_and_a_head_does(tmp_path: Path) -> None:
    """Bytes of table and head are those of 4 layers each: with both counted the first stage would have one of 12."""
    layer = (
        sum(
            stage_cut.quant_formats.layer_bytes(
                stage_cut.parameter_shapes(spec := spec_of(tmp_path, num_layers=12)), {}, 4, 12, PROCESSORS
            )
        )
        // 12
    )
    spec = replace(spec, vocab_size=4 * layer // 4 // spec.hidden_size)
    assert lengths(spec) == [4, 8]
    assert lengths(replace(spec, tied_embeddings=True)) == [4, 8]
    assert lengths(replace(spec, tied_embeddings=True), head=INT8) == [5, 7]


def test_of_experts_those_count_that_some_row_goes_to(tmp_path: Path) -> None:
    """Of 8 rows and 1 of 64 experts an eighth or so is read; the first layers have no experts."""
    spec = spec_of(tmp_path, family="qwen3_moe", num_layers=8)
    assert spec.experts is not None
    mixed = replace(spec.experts, layers=(False,) * 4 + (True,) * 4, num_experts=64, top_k=1)
    one = replace(spec, experts=mixed, intermediate_size=8 * spec.experts.intermediate_size, vocab_size=1)
    all_read = replace(one, experts=replace(mixed, top_k=64))
    assert lengths(one)[0] < lengths(all_read)[0]


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ((10e9, 10e9), (1.0, 1.0)),
        ((10e9, 7.6e9), (1.0, 1.0)),
        ((10e9, 5e9), (1.0, 0.5)),
        ((3e9, 12e9, 11e9), (0.25, 1.0, 1.0)),
        ((), ()),
    ],
)
def test_nodes_that_read_about_as_fast_count_as_equally_fast(given: tuple[float, ...], want: tuple[float, ...]) -> None:
    assert stage_cut.speeds([NodeFigures(one, GIB) for one in given]) == want


def test_a_slow_node_has_fewer_layers_where_its_memory_and_that_of_others_hold_it(tmp_path: Path) -> None:
    spec = replace(spec_of(tmp_path, num_layers=12), vocab_size=1)
    equal, slow = (NodeFigures(10e9, GIB),) * 2, (NodeFigures(10e9, GIB), NodeFigures(5e9, GIB))
    small = tuple(node._replace(memory_bytes=1) for node in slow)
    assert (lengths(spec, equal), lengths(spec, slow), lengths(spec, small)) == ([6, 6], [8, 4], [6, 6])


@pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 2), (3, 3), (4, 2), (3, 1)])
def test_all_ranks_have_the_same_figures(ranks: int, nodes: int) -> None:
    """Of the first rank of each stage; those beside it measure nothing."""
    stages = max(nodes, 3 if nodes == 1 else nodes)
    with group_of(ranks, nodes, stages) as group, ThreadPoolExecutor(ranks) as pool:

        def found(member: StageCollectives) -> tuple[NodeFigures, ...]:
            return stage_cut.exchanged(member, lambda: NodeFigures(1e9 + member.rank, 7.0))

        all_ = list(pool.map(found, group))
    firsts = range(0, ranks, ranks // stages)
    assert all_ == [tuple(NodeFigures(1e9 + first, 7.0) for first in firsts)] * ranks


def test_one_node_measures_nothing() -> None:
    assert stage_cut.told(ServeOptions(model="m", pipeline_parallel_size=2), None) == ()
