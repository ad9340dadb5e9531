"""From the raw body of a request for vectors to what the engine computes and how the answer is written.

Called in worker threads, first with the body and at the end, by `finish`, with the engine's events.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.pooling import prepare
from kvasir_runtime.frontend.pooling.prepare import EmbeddingInputs, ScoringInputs
from kvasir_runtime.frontend.pooling.protocol import HARMLESS, EmbeddingBody, RerankBody, ScoreBody
from kvasir_runtime.frontend.protocol.validation import Raw, validated
from kvasir_runtime.frontend.sender import RequestSender
from kvasir_runtime.server.api.pooling import serialize
from kvasir_runtime.wire import EngineOutput, EngineRequest

Write = Callable[[str, Sequence[EngineOutput], int], bytes]
"""The document of an answer, from its id, the last event of each prompt and the time in unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledRequest:
    """One accepted request. requests: one for each prompt. write: called once with their last outputs, in order."""

    answer_id: str
    requests: tuple[EngineRequest, ...]
    write: Write

    def sent_by(self, sender: RequestSender) -> "PooledRequest":
        """The same, as its sender's."""
        fields = {
            "salt": sender.salt,
            "tenant": sender.tenant,
            "weight": sender.weight,
            "priority": sender.priority_of(0),
            "ttft_s": sender.ttft_s,
        }
        return replace(self, requests=tuple(structs.replace(one, **fields) for one in self.requests))

    def finish(self, events: Sequence[EngineOutput], created: int) -> bytes:
        """The document of the answer. created: unix seconds. Raises GenerationFailed."""
        return self.write(self.answer_id, events, created)


def pooled_request(prefix: str, inputs: EmbeddingInputs | ScoringInputs, write: Write) -> PooledRequest:
    """prefix: how the answer's id begins."""
    answer_id = prefix + secrets.token_hex(12)
    return PooledRequest(answer_id=answer_id, requests=prepare.engine_requests(answer_id, inputs), write=write)


def embeddings(raw: Raw, profile: ModelProfile) -> PooledRequest:
    """Raises Refused."""
    body = validated(raw, EmbeddingBody, HARMLESS)
    inputs = prepare.embed(body, profile)
    name = body.model or profile.names[0]
    return pooled_request(
        "embd-",
        inputs,
        lambda _id, events, _created: serialize.embeddings(
            body, inputs.prompts, map(inputs.vector, events), model=name
        ),
    )


def ranking(raw: Raw, profile: ModelProfile) -> PooledRequest:
    """Raises Refused."""
    body = validated(raw, RerankBody, HARMLESS)
    inputs = prepare.rank(body, profile)
    name = body.model or profile.names[0]
    return pooled_request(
        "rerank-",
        inputs,
        lambda answer_id, events, _created: serialize.ranking(
            body, inputs.prompts, inputs.scores(events), answer_id=answer_id, model=name
        ),
    )


def scores(raw: Raw, profile: ModelProfile) -> PooledRequest:
    """Raises Refused."""
    body = validated(raw, ScoreBody, HARMLESS)
    inputs = prepare.score(body, profile)
    name = body.model or profile.names[0]
    return pooled_request(
        "score-",
        inputs,
        lambda answer_id, events, created: serialize.scores(
            inputs.prompts, inputs.scores(events), answer_id=answer_id, model=name, created=created
        ),
    )
