"""The gated delta rule is its formula, and does not depend on where chunks begin or in which blocks states lie."""

import math
import random

import pytest
import torch
from transformers.models.bamba import modeling_bamba as bamba
from transformers.models.qwen3_next import modeling_qwen3_next as oracle

from kvasir_runtime.kernels import gated_delta
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.kernels.gated_delta import StateHeads
from kvasir_runtime.kernels.reference import REFERENCE

TABLES = pytest.mark.parametrize("table", [REFERENCE, CPU], ids=lambda table: table.name)
HEADS, VALUE_DIM, WIDTH, BLOCK = StateHeads(2, 4, 8), 6, 4, 16
CHANNELS = 2 * 2 * 8 + 4 * VALUE_DIM
NUMBERS = (WIDTH - 1) * CHANNELS + 4 * 8 * VALUE_DIM


def drawn(tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, CHANNELS, generator=generator)
    conv = torch.randn(CHANNELS, 1, WIDTH, generator=generator)
    return x, conv, -torch.rand(tokens, 4, generator=generator), torch.rand(tokens, 4, generator=generator)


def computed(table, drawn, cuts, tables, states):
    """Chunks that end at cuts, one step each."""
    x, conv, log_decay, beta = drawn
    out, start = [], 0
    for end in cuts:
        metadata = AttentionMetadata([end - start], [end], torch.tensor([tables]))
        part = slice(start, end)
        given = table.gated_delta(x[part], conv, log_decay[part], beta[part], states, metadata, BLOCK, HEADS)
        out.append(given)
        start = end
    return torch.cat(out)


@TABLES
@pytest.mark.parametrize("count", [2, 17, 32])
def test_few_tokens_have_the_bits_that_they_have_one_by_one(table, count):
    """So a step with drafts, and what it computes again, gives what steps of one token give: in sizes of 16 each."""
    heads, channels, end, generator = StateHeads(8, 16, 16), 512, 9 + count, torch.Generator().manual_seed(0)
    x, conv = (torch.randn(*shape, generator=generator) for shape in ((end, channels), (channels, 1, 4)))
    log_decay, beta = -torch.rand(end, 16, generator=generator), torch.rand(end, 16, generator=generator)
    found = []
    for cuts in ([9, end], range(9, end + 1)):
        states, out, start = torch.zeros(3, 3 * channels + 16 * 16 * 16), [], 0
        for stop in cuts:
            part, metadata = slice(start, stop), AttentionMetadata([stop - start], [stop], torch.tensor([[2, 0, 1]]))
            out.append(table.gated_delta(x[part], conv, log_decay[part], beta[part], states, metadata, BLOCK, heads))
            start = stop
        found.append((torch.cat(out), states[[2, 0, 1][(end - 1) // BLOCK]]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@TABLES
def test_one_head_is_its_formula(table):
    (a, b), (k, v), q = (0.5, -2.0), (3.0, 1.0), 2.0
    conv = torch.tensor([[[a, b]]]).expand(3, 1, 2)
    x = torch.tensor([[q, k, v], [-q, k, -v]])
    log_decay, beta = torch.tensor([[0.0], [math.log(0.25)]]), torch.tensor([[0.5], [1.0]])
    states = torch.full((2, 3 + 1), math.nan)  # nothing is read at the first position
    metadata = AttentionMetadata([2], [2], torch.tensor([[1]]))
    out = table.gated_delta(x, conv, log_decay, beta, states, metadata, 8, StateHeads(1, 1, 1))

    def silu(number):
        return number / (1 + math.exp(-number))

    def unit(number):
        return number / math.sqrt(number * number + 1e-6)

    first = silu(b * v) * unit(silu(b * k)) * 0.5
    keyed = unit(silu(a * k + b * k))
    second = 0.25 * first + keyed * (silu(a * v - b * v) - keyed * 0.25 * first)
    want = [unit(silu(b * q)) * first, unit(silu(a * q - b * q)) * second]
    torch.testing.assert_close(out.flatten(), torch.tensor(want), atol=1e-6, rtol=1e-5)
    assert states[0].isnan().all()
    torch.testing.assert_close(states[1], torch.tensor([-q, k, -v, second]), atol=1e-6, rtol=1e-5)


def test_a_sequence_is_transformers_own():
    x, conv, log_decay, beta = drawn(150)
    mixed = oracle.causal_conv1d_fn(x.T[None], conv[:, 0], None, activation="silu")[0].T
    query, key, value = (
        part.unflatten(1, (n, -1)) for part, n in zip(mixed.split((16, 16, 24), 1), (2, 2, 4), strict=True)
    )
    want, state = oracle.torch_recurrent_gated_delta_rule(
        *(part[None] for part in (query, key, value)),
        g=log_decay[None],
        beta=beta[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    for table in (REFERENCE, CPU):
        states = torch.zeros(10, NUMBERS)
        out = computed(table, (x, conv, log_decay, beta), [150], list(range(10)), states)
        torch.testing.assert_close(out, want[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(states[9, -state.numel() :], state.flatten(), atol=1e-5, rtol=1e-5)


def test_a_sequence_without_the_delta_is_bambas_own():
    x, conv, _, beta = drawn(150)
    generator = torch.Generator().manual_seed(1)
    x, bias, skip = x / 2, *(torch.randn(size, generator=generator) for size in (CHANNELS, 4))
    mixed = bamba.causal_conv1d_fn(x.T[None], conv[:, 0], bias, activation="silu")[0].T
    query, key, value = (
        part.unflatten(1, (n, -1))[None] for part, n in zip(mixed.split((16, 16, 24), 1), (2, 2, 4), strict=True)
    )
    rates = torch.rand(4, generator=generator) + 0.1
    given = (value, beta[None], -rates, key, query)
    want, state = bamba.mamba2_chunk_scan(*given, chunk_size=64, D=skip, return_final_states=True)
    for table in (REFERENCE, CPU):
        states, metadata = torch.zeros(10, NUMBERS), AttentionMetadata([150], [150], torch.arange(10)[None])
        rest = states, metadata, BLOCK, HEADS._replace(delta=False), bias, skip
        out = table.gated_delta(x, conv, -rates * beta, beta, *rest)
        torch.testing.assert_close(out, want[0], atol=2e-5, rtol=1e-5)
        last = states[9, -state.numel() :].view(4, 8, VALUE_DIM)
        torch.testing.assert_close(last, state[0].transpose(1, 2), atol=2e-5, rtol=1e-5)


@TABLES
@pytest.mark.parametrize("seed", range(3))
def test_chunks_of_any_length_give_the_same(table, seed):
    chooser, made = random.Random(seed), drawn(140, seed)
    whole = computed(REFERENCE, made, [140], list(range(9)), torch.zeros(9, NUMBERS))
    cuts = [*sorted(chooser.sample(range(1, 140), 9)), 140]
    scattered = chooser.sample(range(12), 9)
    found = computed(table, made, cuts, scattered, torch.full((12, NUMBERS), 1e9))
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-4)


@TABLES
def test_other_blocks_and_the_state_behind_a_border_stay_as_they_are(table):
    made, states = drawn(20), torch.full((4, NUMBERS), 7.0)
    computed(table, made, [16], [2, 0], states)
    border = states[2].clone()
    x, conv, log_decay, beta = made
    metadata = AttentionMetadata([1], [17], torch.tensor([[2, 0]]))
    table.gated_delta(x[16:17], conv, log_decay[16:17], beta[16:17], states, metadata, BLOCK, HEADS)
    assert torch.equal(states[2], border)
    assert (states[[1, 3]] == 7).all()
    assert not (states[0] == 7).all()


def test_decays_that_leave_nothing_are_no_trouble_for_chunks():
    x, conv, _, beta = drawn(gated_delta.CHUNK * 2)
    made = (x, conv, torch.full((x.shape[0], 4), -80.0), beta)
    end = [x.shape[0]]
    want, found = (computed(table, made, end, range(8), torch.zeros(8, NUMBERS)) for table in (REFERENCE, CPU))
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)
