"""Builds the outputs of a request from what the engine returns. Called by AsyncLLM for each output of a step."""

from collections.abc import Sequence

from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.frontend.output_processor import OutputDelta, OutputProcessor, best_choices
from kvasir_runtime.offline.outputs import Completion, Logprob, Output, TokenLogprobs
from kvasir_runtime.wire import EngineOutput, FinishReason, Logprobs


class CompletionBuilder:
    """Text, ids and logprobs of a choice so far."""

    __slots__ = ("logprobs", "reason", "score", "texts", "token_ids")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.score: float | None = None
        self.reason: FinishReason = "stop"

    def add(self, event: EngineOutput, delta: OutputDelta) -> None:
        """Take in an output of the engine and what it added."""
        self.texts.append(delta.text)
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs
        self.score = event.score if event.finish_reason is not None else self.score
        self.reason = delta.reason or self.reason


def output(
    request: GenerationRequest,
    choices: Sequence[OutputProcessor],
    growing: Sequence[CompletionBuilder],
    labels: TokenLabels,
) -> Output:
    """All choices of a request that are returned, best first where more were drawn."""
    return Output(
        prompt_token_ids=request.requests[0].prompt,
        cached_tokens=max(choice.cached_tokens for choice in choices),
        outputs=tuple(
            _completion(index, request, choices[drawn], growing[drawn], labels)
            for index, drawn in enumerate(best_choices(request, choices))
        ),
        prompt_logprobs=_of_prompt(request, choices[0], labels),
        request_id=request.answer_id,
    )


def _completion(
    index: int, request: GenerationRequest, choice: OutputProcessor, grown: CompletionBuilder, labels: TokenLabels
) -> Completion:
    """Ids that came in one step with those of a stop string, but after it, are cut like their text."""
    ids = tuple(grown.token_ids[: choice.num_tokens])
    with_logprobs = request.logprobs >= 0
    return Completion(
        index=index,
        text="".join(grown.texts),
        token_ids=ids,
        finish_reason=grown.reason,
        logprobs=tuple(
            _at(token, one, request.logprobs, labels) for token, one in zip(ids, grown.logprobs, strict=False)
        )
        if with_logprobs
        else None,
        cumulative_logprob=sum(one.logprob for one in grown.logprobs[: len(ids)]) if with_logprobs else None,
        score=grown.score if request.requests[0].beam is not None else None,
    )


def _of_prompt(
    request: GenerationRequest, choice: OutputProcessor, labels: TokenLabels
) -> tuple[TokenLogprobs | None, ...] | None:
    if request.prompt_logprobs < 0:
        return None
    ids = request.requests[0].prompt[1:]
    found = (
        _at(token, one, request.prompt_logprobs, labels) for token, one in zip(ids, choice.prompt_logprobs, strict=True)
    )
    return (None, *found)


def _at(token: int, found: Logprobs, num_top: int, labels: TokenLabels) -> TokenLogprobs:
    made = {token: Logprob(logprob=found.logprob, rank=found.rank, decoded_token=labels.token(token))}
    for rank, (other, value) in enumerate(zip(found.top_ids[:num_top], found.top, strict=False), 1):
        made.setdefault(other, Logprob(logprob=value, rank=rank, decoded_token=labels.token(other)))
    return made
