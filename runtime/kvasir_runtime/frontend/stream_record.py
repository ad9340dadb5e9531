"""What a stream's continuation token is written from: the outputs of its choices, kept as they come.

Owned by the output collector of a stream that may be continued elsewhere; brings a choice to where another replica left
it, too.
"""

from collections.abc import Iterator, Sequence

from kvasir_runtime.frontend.choice_history import ChoiceHistory
from kvasir_runtime.frontend.continuation import TokenWriter
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.output_processor import OutputDelta, OutputProcessor
from kvasir_runtime.wire import EngineOutput


class StreamRecord:
    """choices: of the request, in order. The histories of a request that goes on are continued."""

    def __init__(self, request: GenerationRequest, choices: Sequence[OutputProcessor], writer: TokenWriter) -> None:
        self._choices, self._writer = choices, writer
        self._histories = request.histories or tuple(ChoiceHistory() for _ in choices)

    def add(self, index: int, output: EngineOutput) -> None:
        """An output that a choice is about to accept."""
        if self._choices[index].open:
            self._histories[index].record(output)

    def begin(self) -> str:
        """The first piece of the token."""
        return self._writer.begin()

    def gained(self) -> str:
        """A piece with what came since the last one; empty where nothing did."""
        found = [
            history.progress(index, choice.unreleased, choice.cached_tokens)
            for index, (history, choice) in enumerate(zip(self._histories, self._choices, strict=True))
        ]
        gained = [one for one in found if one is not None]
        return self._writer.add(gained) if gained else ""


def replayed(request: GenerationRequest, choices: Sequence[OutputProcessor]) -> Iterator[OutputDelta]:
    """What the client has of each choice already, as it came; the choices are as they were then."""
    shown = request.requests[0].sampling.logprobs >= 0
    for history, choice in zip(request.histories, choices, strict=True):
        for output in history.outputs(choice.request_id, logprobs=shown):
            yield choice.accept(output)
