"""The gated delta rule over ragged batches: steps and chunks, blocks in place and the next, rows of padding."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import triton_device

DEVICE = triton_device.device()

# ruff: noqa: E402 -- behind the question where it can run
from kvasir_runtime.kernels import gated_delta as operation
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.gated_delta import StateHeads
from kvasir_runtime.kernels.gpu import gated_delta

BLOCK = 16
SEQUENCES = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 4, 17, 33]), st.sampled_from([0, 1, 3, 15, 16, 40])), min_size=1, max_size=3
)


class Case:
    """Tensors of one call. states: with other layers beside them; blocks without a state are not a number."""

    def __init__(
        self,
        sequences: list[tuple[int, int]],
        heads: StateHeads,
        value_dim: int,
        *,
        width: int = 4,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(len(sequences) + value_dim)
        self.query_lens, self.kv_lens = [n for n, _ in sequences], [n + before for n, before in sequences]
        tokens, columns = sum(self.query_lens), -(-max(self.kv_lens) // BLOCK)
        channels = 2 * heads.key_heads * heads.key_dim + heads.value_heads * value_dim
        numbers = (width - 1) * channels + heads.value_heads * heads.key_dim * value_dim
        self.tables = torch.randperm(len(sequences) * columns, generator=generator).view(-1, columns) + 1
        self.memory = torch.full((len(sequences) * columns + 1, numbers + 8), float("nan"))
        for table, (_, before) in zip(self.tables, sequences, strict=True):
            if before:
                held = torch.randn(numbers, generator=generator) / 4
                held[: max(0, width - 1 - before) * channels] = 0  # before the first position
                self.memory[table[(before - 1) // BLOCK], :numbers] = held
        self.x = torch.randn(tokens, channels, generator=generator).to(dtype)
        self.conv = torch.randn(channels, 1, width, generator=generator).to(dtype)
        self.log_decay = -torch.rand(tokens, heads.value_heads, generator=generator)
        self.beta = torch.rand(tokens, heads.value_heads, generator=generator)
        self.heads, self.numbers = heads, numbers
        self.bias = self.skip = None
        if not heads.delta:
            self.x /= 2
            self.bias, self.skip = (
                torch.randn(size, generator=generator) / 2 for size in (channels, heads.value_heads)
            )
            self.bias = self.bias.to(dtype)

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs, and the states behind them."""
        memory = self.memory.clone()
        rest = AttentionMetadata(self.query_lens, self.kv_lens, self.tables), BLOCK, self.heads
        given = self.x, self.conv, self.log_decay, self.beta, memory[:, : self.numbers], *rest
        return operation.reference(*given, self.bias, self.skip), memory

    def launched(self, chunk: int, most_steps: int, *, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """The same by the kernels. padding: sequences with a token each in block 0, and one without any, behind them;
        then only the device knows the lengths.
        """
        memory = self.memory.to(DEVICE)
        tokens = (self.x, self.log_decay, self.beta)
        metadata = AttentionMetadata(self.query_lens, self.kv_lens, self.tables).moved(DEVICE)
        if padding:
            tokens = tuple(torch.cat((part, part[:1].repeat(padding, 1))) for part in tokens)  # type: ignore[assignment]
            starts, lens = metadata.lengths()
            more = starts[-1] + torch.arange(1, padding + 1, dtype=torch.int32, device=DEVICE)
            tables = metadata.block_tables
            tables = torch.cat((tables, tables.new_zeros(padding + 1, tables.shape[1])))
            metadata = AttentionMetadata.on_device(
                torch.cat((starts, more, more[-1:])),
                torch.cat((lens, torch.ones_like(more), lens[:1])),
                tables.int(),
                longest_query=max(self.query_lens),
            )
        x, log_decay, beta = (part.to(DEVICE) for part in tokens)
        states = memory[:, : self.numbers]
        rest = states, metadata, BLOCK, self.heads, chunk, 4, most_steps
        added = {
            name: None if one is None else one.to(DEVICE) for name, one in (("bias", self.bias), ("skip", self.skip))
        }
        out = gated_delta.advance(x, self.conv.to(DEVICE), log_decay, beta, *rest, **added)
        if padding:
            memory[0] = float("nan")
        return out[: len(self.x)].cpu(), memory.cpu()


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    sequences=SEQUENCES,
    sizes=st.sampled_from([(1, 1, 8, 8), (1, 2, 16, 24), (2, 4, 12, 5), (2, 2, 8, 40)]),
    width=st.sampled_from([2, 4]),
    chunk=st.sampled_from([16, 32]),
    most_steps=st.sampled_from([0, 3, 8, 100]),
    padding=st.sampled_from([0, 0, 2]),
    delta=st.booleans(),
)
def test_ragged_batches_agree_with_the_reference(
    sequences: list[tuple[int, int]],
    sizes: tuple[int, ...],
    width: int,
    chunk: int,
    most_steps: int,
    padding: int,
    delta: bool,
) -> None:
    *heads, value_dim = sizes
    case = Case(sequences, StateHeads(*heads, delta=delta), value_dim, width=width)
    want, states = case.reference()
    out, written = case.launched(chunk, most_steps, padding=padding)
    atol = 2e-6 if delta else 1e-5
    torch.testing.assert_close(out, want, atol=atol, rtol=1e-5)
    torch.testing.assert_close(written, states, atol=atol, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("delta", [True, False])
def test_numbers_of_16_bits_keep_their_states_near_the_references(delta: bool) -> None:
    case = Case([(20, 5), (1, 16), (4, 0)], StateHeads(1, 2, 16, delta), 24, dtype=torch.float16)
    want, states = case.reference()
    for most_steps in (0, 100):
        out, written = case.launched(16, most_steps)
        torch.testing.assert_close(out, want, atol=2e-3 if delta else 4e-3, rtol=2e-3)
        torch.testing.assert_close(written, states, atol=2e-3, rtol=2e-3, equal_nan=True)


def test_parts_of_any_length_give_what_the_whole_gives() -> None:
    chooser = random.Random(0)
    whole = Case([(70, 0)], StateHeads(1, 2, 16), 8)
    want, states = whole.reference()
    cuts, out = [0, *sorted(chooser.sample(range(1, 70), 4)), 70], []
    for begin, end in pairwise(cuts):
        part = Case([(end - begin, begin)], StateHeads(1, 2, 16), 8)
        part.tables, part.memory = whole.tables, whole.memory
        for name in ("x", "log_decay", "beta"):
            setattr(part, name, getattr(whole, name)[begin:end])
        part.conv = whole.conv
        given, whole.memory = part.launched(16, 3)
        out.append(given)
    torch.testing.assert_close(torch.cat(out), want, atol=2e-6, rtol=1e-5)
    last = whole.tables[0, -1]
    torch.testing.assert_close(whole.memory[last], states[last], atol=2e-6, rtol=1e-5, equal_nan=True)


def test_decays_that_leave_nothing_and_keys_that_are_all_alike() -> None:
    """Sums of decays beyond what an exponential can hold, and the system that is farthest from the identity."""
    case = Case([(40, 3)], StateHeads(1, 1, 8), 8)
    case.x[:, 8:16] = 1.0
    case.conv[8:16] = 1.0
    case.beta.fill_(1.0)
    for decay in (0.0, -80.0):
        case.log_decay.fill_(decay)
        want, states = case.reference()
        out, written = case.launched(32, 0)
        torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(written, states, atol=1e-5, rtol=1e-5, equal_nan=True)
