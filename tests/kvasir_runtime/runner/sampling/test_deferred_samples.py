"""A token whose sample was deferred is left out of later forward passes, and its hidden state takes its place."""

import torch

from fakes.overlapping import Overlapping
from kvasir_runtime.core.plan import Chunk, Fork, Join, StepPlan
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.runner.sampling.deferred_samples import DeferredSamples
from kvasir_runtime.runner.sampling.grammar_mask_batch import GrammarMaskBatch, GuidedChunk
from kvasir_runtime.runner.state.device_stream import HostStream
from kvasir_runtime.wire import SamplingConfig


def chunk(row: int, start: int, num_tokens: int = 1) -> Chunk:
    return Chunk(row=row, start=start, num_tokens=num_tokens, samples=True)


def deferred(stream=None) -> DeferredSamples:
    """Of rows 1, 2 and 3 of a step the second one, whose token at position 8 will be sampled."""
    samples = DeferredSamples(stream or HostStream())
    guided = tuple(GuidedChunk(index, index + 1, 8, "matcher") for index in range(3))
    samples.keep(GrammarMaskBatch(guided, deferred={1}), ForwardOutput(hidden=hidden(10.0, 20.0, 30.0)))
    return samples


def hidden(*rows: float) -> torch.Tensor:
    return torch.tensor(rows)[:, None].expand(-1, 4).contiguous()


def firsts(forward: ForwardOutput) -> list[float]:
    return forward.hidden[:, 0].tolist()


def test_without_a_deferred_sample_nothing_changes():
    samples, chunks = DeferredSamples(HostStream()), (chunk(1, 3), chunk(2, 5))
    forward = ForwardOutput(hidden=hidden(1.0, 2.0))
    assert samples.to_compute(chunks) is chunks
    assert samples.completed(chunks, forward, None) == (forward, None)


def test_its_token_is_not_computed_again():
    samples, chunks = deferred(), [chunk(1, 8), chunk(2, 7), chunk(3, 8)]
    assert samples.to_compute(chunks) == [chunks[0], chunks[2]]
    forward, _ = samples.completed(chunks, ForwardOutput(hidden=hidden(1.0, 3.0, 4.0)), None)
    assert firsts(forward) == [1.0, 20.0, 3.0, 4.0], "what is scored or pooled comes behind the samples"
    assert samples.to_compute([chunk(2, 8)]) == [chunk(2, 8)], "it is sampled, and the next token is computed"


def test_what_was_planned_behind_it_is_not_computed():
    samples, planned = deferred(), [chunk(2, 8), chunk(3, 8)]
    assert samples.to_compute(planned) == [planned[1]]
    forward, _ = samples.completed(planned, ForwardOutput(hidden=hidden(3.0)), None)
    assert firsts(forward) == [0.0, 3.0]
    assert samples.to_compute([chunk(2, 7)]) == []
    assert firsts(samples.completed([chunk(2, 7)], None, None)[0]) == [20.0]


def test_tokens_that_were_inserted_behind_it_are_computed():
    samples = deferred()
    assert samples.to_compute([chunk(2, 7, 5)]) == [chunk(2, 8, 4)]
    assert samples.to_compute([chunk(2, 12)]) == [chunk(2, 12)]


def test_a_row_of_another_sequence_has_nothing_deferred():
    join = Join(
        row=2,
        request_id="r",
        tokens=(1, 2),
        prompt_tokens=2,
        computed_tokens=0,
        tables=((0,),),
        sampling=SamplingConfig(max_tokens=1),
    )
    for plan in (
        StepPlan(step=2, leaves=(2,)),
        StepPlan(step=2, joins=(join,)),
        StepPlan(step=2, forks=(Fork(row=2, source=1, position=8, tokens=(), kept_blocks=1),)),
    ):
        samples = deferred()
        samples.apply(plan)
        assert samples.to_compute([chunk(2, 7)]) == [chunk(2, 7)]


def test_a_device_is_told_where_all_samples_go():
    chunks = [chunk(2, 7), chunk(3, 5, 4)]
    samples = deferred(Overlapping())
    _, positions = samples.completed(chunks, ForwardOutput(hidden=hidden(3.0)), None)
    assert positions is not None
    assert (positions.rows.tolist(), positions.ends.tolist()) == ([2, 3], [8, 9])
    assert (positions.rows.dtype, positions.ends.dtype) == (torch.int64, torch.int32)
