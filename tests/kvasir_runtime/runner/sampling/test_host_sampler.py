"""One operation of C++ changes logits and samples as the runner does with torch's operations, for any mixture."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.kernels.cpu.library import Library, library, variants
from kvasir_runtime.kernels.cpu.row_sampler import CppRowSampler
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.runner.sampling.grammar_mask_batch import GrammarMaskBatch, GuidedChunk
from kvasir_runtime.runner.sampling.grammar_masks import GrammarMasks
from kvasir_runtime.runner.sampling.host_sampler import host_sampler_of
from kvasir_runtime.runner.sampling.logits_processors import LogitsProcessors
from kvasir_runtime.runner.sampling.logprobs import RequestedLogprobs
from kvasir_runtime.runner.sampling.mask_filler import MaskRow, MaskTask
from kvasir_runtime.runner.sampling.sampler import Sampler, SamplingBatch
from kvasir_runtime.runner.state.device_stream import HostStream
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.wire import SamplingConfig

FOUND = library()
VOCAB = 17_003
EOS = (3, 9)
ids = st.integers(0, VOCAB - 1)
few_ids = st.lists(ids, max_size=6).map(tuple)


@dataclass(frozen=True)
class Head:
    """A model of which only given logits are read."""

    def logits_of(self, output: ForwardOutput) -> Tensor:
        assert output.logits is not None
        return output.logits.clone()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sequence with all its known tokens. mask: ids that a grammar allows, None without one."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    sampling: SamplingConfig
    min_tokens_left: int
    mask: tuple[int, ...] | None

    @property
    def end(self) -> int:
        return len(self.prompt) + len(self.answer)


samplings = st.builds(
    SamplingConfig,
    max_tokens=st.just(9),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 0, 1, 5, 600]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.2]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    seed=st.integers(0, 2**64 - 1),
    stop_token_ids=few_ids,
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.8, -1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2, 0.7]),
    logit_bias=st.dictionaries(ids, st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=6).map(
        lambda biases: tuple(biases.items())
    ),
    bad_words=st.lists(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    allowed_token_ids=st.one_of(st.just(()), st.just(()), few_ids),
    logprobs=st.sampled_from([-1, -1, 2]),
)
rows = st.builds(
    Row,
    prompt=st.lists(st.one_of(st.sampled_from([1, 2, 3]), ids), min_size=1, max_size=12).map(tuple),
    answer=st.lists(st.sampled_from([1, 2, 3]), max_size=12).map(tuple),
    sampling=samplings,
    min_tokens_left=st.sampled_from([0, 0, 2]),
    mask=st.one_of(st.none(), st.none(), few_ids.map(lambda some: (1, *some))),
)


def sampled(asked: list[Row], logits: Tensor, variant: str | None) -> tuple[list[int], list[list[float]]]:
    """Ids and logprobs, by torch's operations or by a variant of the library."""
    state = HostRowState(max_sequences=len(asked), max_model_len=32, block_size=8, num_groups=1, eos_token_ids=EOS)
    stream, ops = HostStream(), REFERENCE
    if variant is not None:
        assert FOUND is not None
        found = Library(isa=variant, handle=FOUND.handle)
        ops = replace(REFERENCE, row_sampler=lambda tokens, draws: CppRowSampler(found, tokens, draws))
    processors = LogitsProcessors(vocab_size=VOCAB, eos_token_ids=EOS, ops=ops, stream=stream)
    host, reported, masks = host_sampler_of(ops, state, EOS), RequestedLogprobs(), GrammarMasks(None, ops, stream)
    assert (host is None) == (variant is None)
    joins = [
        Join(
            row=number,
            request_id=str(number),
            tokens=row.prompt + row.answer,
            prompt_tokens=len(row.prompt),
            computed_tokens=0,
            tables=((),),
            sampling=row.sampling,
        )
        for number, row in enumerate(asked)
    ]
    plan = StepPlan(step=0, joins=tuple(joins))
    for one in (state, host or processors, reported):
        one.apply(plan)
    sampler = Sampler(
        model=Head(),  # type: ignore[arg-type]
        ops=ops,
        rows=state,
        logits_processors=processors,
        grammar_masks=masks,
        stream=stream,
        host_sampler=host,
    )
    batch = batch_of(asked)
    batch.owners, batch.kind = reported.of_samples(batch.chunks), "special"  # all that there is
    found_ids, logprobs = sampler.sample(ForwardOutput(hidden=torch.empty(len(asked), 1), logits=logits), batch, None)
    return found_ids.tolist(), [] if logprobs is None else logprobs.packed.tolist()


def batch_of(asked: list[Row]) -> SamplingBatch:
    chunks = [
        Chunk(row=number, start=0, num_tokens=row.end, samples=True, min_tokens_left=row.min_tokens_left)
        for number, row in enumerate(asked)
    ]
    guided = [(number, row.mask) for number, row in enumerate(asked) if row.mask is not None]
    if not guided:
        return SamplingBatch(chunks)
    filled = np.zeros((len(guided), -(-VOCAB // 32)), dtype=np.int32)
    for mask, (_, allowed) in zip(filled.view(np.uint32), guided, strict=True):
        for token in allowed:
            mask[token // 32] |= np.uint32(1 << token % 32)
    task = MaskTask((), filled, np.array([len(filled)]))
    rows = [MaskRow(task, number) for number in range(len(filled))]
    return SamplingBatch(chunks, masks=GrammarMaskBatch(tuple(GuidedChunk(i, i, 0, "") for i, _ in guided), rows))


@pytest.mark.skipif(FOUND is None, reason="no library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    asked=st.lists(rows, min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    spoiled=st.sampled_from([None, None, slice(5, 6), slice(17_000, None), slice(None)]),
    by=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_rows_are_sampled_as_by_torchs_operations(
    dtype: torch.dtype, asked: list[Row], seed: int, spoiled: slice | None, by: float
) -> None:
    assert FOUND is not None
    logits = (torch.randn(len(asked), VOCAB, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)
    if spoiled is not None:
        logits[0, spoiled] = by
    want_ids, want_logprobs = sampled(asked, logits, None)
    for variant in variants(FOUND.handle):
        found_ids, found_logprobs = sampled(asked, logits, variant)
        assert found_ids == want_ids
        assert str(found_logprobs) == str(want_logprobs)  # where NaN is NaN


@pytest.mark.skipif(FOUND is None, reason="no library")
@pytest.mark.parametrize(
    ("sampling", "mask", "want"),
    [
        ({"allowed_token_ids": (7, 5), "bad_words": ((5,), (7,))}, None, 5),
        ({"bad_words": tuple((token,) for token in range(VOCAB))}, None, 3),
        ({"bad_words": tuple((token,) for token in range(VOCAB))}, (3, 8), 3),
        ({"bad_words": tuple((token,) for token in range(VOCAB))}, (650, 8), 650),
        ({"allowed_token_ids": (7, 5)}, (650, 8), 650),
        ({"stop_token_ids": (650, 8)}, (650, 8), 650),
    ],
)
def test_where_all_is_forbidden_one_remains(sampling: dict[str, object], mask: tuple[int, ...], want: int) -> None:
    assert FOUND is not None
    made = SamplingConfig(max_tokens=9, temperature=0.0, **sampling)  # type: ignore[arg-type]
    asked = [Row(prompt=(1,), answer=(2,), sampling=made, min_tokens_left=1, mask=mask)]
    logits = torch.linspace(0, 1, VOCAB)[None]
    assert sampled(asked, logits, None)[0] == sampled(asked, logits, FOUND.isa)[0] == [want]
