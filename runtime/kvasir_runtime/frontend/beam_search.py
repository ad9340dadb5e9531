"""Beam search instead of sampling: its width, the room that it needs, and the requests that the engine gets.

Called by prepare.py. Names are vLLM's: use_beam_search makes n
(or best_of) the width; the n best answers come at the end, also in a stream, as no token is certain before.
"""

from collections.abc import Sequence

import msgspec

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol.generation import Body
from kvasir_runtime.wire import BeamSearchConfig, EngineFacts, EngineRequest


def width_of(body: Body) -> int:
    """Beams for each prompt; 0 for sampling."""
    return max(body.n, getattr(body, "best_of", None) or 1) if body.use_beam_search else 0


def fitting(body: Body, prompt_tokens: int, limit: int, ready: EngineFacts | None) -> int:
    """Tokens that prompt and answer may have: limit, or less where all beams must find a place in the cache.

    ready: the engine's facts; without them the engine decides. Raises Refused when there is no room for the beams.
    """
    width = width_of(body)
    if not width or ready is None:
        return limit
    if width > ready.max_sequences:
        raise _refused(f"{width} beams are more than the {ready.max_sequences} sequences that run at a time", "n")
    beam = BeamSearchConfig(width=width, answers=())
    columns = ready.capacity_tokens // ready.data_ranks // ready.block_size
    return min(limit, beam.max_length(prompt_tokens, columns, ready.block_size))


def searched(body: Body, requests: Sequence[EngineRequest]) -> list[EngineRequest]:
    """The requests of one prompt, one for each answer, as one search and those that are answered with it."""
    first, *others = requests
    beam = BeamSearchConfig(
        width=width_of(body),
        length_penalty=body.length_penalty,
        early_stopping=body.early_stopping,
        answers=tuple(request.request_id for request in requests),
    )
    replaced = msgspec.structs.replace
    return [replaced(first, beam=beam), *(replaced(other, follows=first.request_id) for other in others)]


def _refused(message: str, param: str) -> Refused:
    return Refused(openai_errors.invalid(message, param=param, code="unsupported_parameter"))
