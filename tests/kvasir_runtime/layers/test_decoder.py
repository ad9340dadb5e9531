"""What a decoder keeps of the tensors that it was built from."""

import gc
import weakref

import pytest
import torch

from kvasir_api.cache_groups import FULL
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec, parameter_shapes


def spec(*, tied: bool) -> DecoderSpec:
    return DecoderSpec(
        vocab_size=50,
        hidden_size=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        intermediate_size=24,
        attentions=(FULL,),
        rope=RopeSpec(),
        norm_eps=1e-5,
        tied_embeddings=tied,
    )


def built(ops, *, tied: bool):
    """A decoder, a copy of its table of embeddings, and a reference to the table that does not keep it."""
    shapes = parameter_shapes(spec(tied=tied))
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    copy, table = tensors["embedding"].clone(), weakref.ref(tensors["embedding"])
    decoder = Decoder(spec(tied=tied), ops, tensors, num_positions=32)
    gc.collect()
    return decoder, copy, table


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("ops", [CPU, cpu_ops()], ids=lambda ops: ops.name)
def test_ids_become_the_rows_of_the_table(ops, tied):
    decoder, copy, _ = built(ops, tied=tied)
    ids = torch.tensor([0, 49, 7, 7])
    assert torch.equal(decoder._embed(ids), copy[ids])


def test_a_table_that_is_the_head_too_is_kept_once():
    found = library()
    if found is None:
        pytest.skip("no C++ kernels for bfloat16 here")
    decoder, _, table = built(cpu_ops(), tied=True)
    assert table() is None
    decoder, _, table = built(cpu_ops(), tied=False)
    assert table() is not None
    del decoder
