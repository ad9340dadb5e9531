"""Outputs of a sequence, as the wire has them. Used by the scheduler and by beam groups."""

from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.wire import EngineOutput, FinishReason, Logprobs


def event_of(
    sequence: SequenceState,
    *,
    request_id: str = "",
    token_ids: tuple[int, ...] = (),
    finish_reason: FinishReason | None = None,
    stop_token_id: int | None = None,
    logprobs: tuple[Logprobs, ...] = (),
    prompt_logprobs: tuple[Logprobs, ...] = (),
    pooled: bytes = b"",
    score: float = 0.0,
    message: str = "",
    injected: int = 0,
) -> EngineOutput:
    """An event of the sequence's request, or of the one with another id that it answers for too."""
    return EngineOutput(
        request_id=request_id or sequence.request.request_id,
        token_ids=token_ids,
        finish_reason=finish_reason,
        stop_token_id=stop_token_id,
        cached_tokens=sequence.cached_tokens or 0,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        pooled=pooled,
        score=score,
        message=message,
        injected=injected,
    )


def prompt_events(sequence: SequenceState, scores: tuple[Logprobs, ...]) -> list[EngineOutput]:
    """Logprobs of a prompt, for every answer that it will have."""
    names = () if sequence.request.beam is None else sequence.request.beam.answers
    return [event_of(sequence, request_id=name, prompt_logprobs=scores) for name in names or ("",) if scores]
