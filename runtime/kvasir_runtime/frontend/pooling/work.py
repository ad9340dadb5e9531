"""What a request for embeddings, a reranking or scores means: which prompts are computed, and what is made of them.

Called in worker threads: `embeddings`, `reranking` and `scores` with the raw body, and the finishing of their Work with
the engine's events. It decides and refuses; it knows nothing of sockets or of the event loop.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import GenerationFailed, Refused
from kvasir_runtime.frontend.model_profile import ModelProfile, check_model
from kvasir_runtime.frontend.pooling import inputs, vectors
from kvasir_runtime.frontend.pooling.capabilities import EmbeddingCapability, ScoringCapability
from kvasir_runtime.frontend.pooling.documents import (
    EmbeddingItem,
    Ranked,
    RankedDocument,
    Ranking,
    Score,
    Scores,
    ScoreUsage,
    Usage,
)
from kvasir_runtime.frontend.pooling.inputs import Cut
from kvasir_runtime.frontend.pooling.protocol import HARMLESS, EmbeddingBody, RerankBody, ScoreBody
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.wire import EngineOutput, EngineRequest, PoolingConfig, SamplingConfig

MAX_TOTAL_TOKENS: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """requests: to compute. finish: the answer's document from their last events, in order; created: unix seconds."""

    answer_id: str
    requests: tuple[EngineRequest, ...]
    finish: Callable[[Sequence[EngineOutput], int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """What embeddings take, whatever their answer looks like. vector: that of a prompt from its last event."""

    prompts: list[tuple[int, ...]]
    pooling: PoolingConfig
    vector: Callable[[EngineOutput], vectors.Vector]


def embedded(body: EmbeddingBody, served: ModelProfile) -> Embedded:
    """Raises Refused."""
    check_model(body.model, served)
    ability = served.capabilities.embedding
    if isinstance(ability, str):
        raise _cannot(f"This model gives no embeddings. {ability}")
    dimensions = _dimensions(body.dimensions, ability)
    cut = Cut(keep=body.truncate_prompt_tokens, special=body.add_special_tokens)
    prompts = _bounded((inputs.single(source, served, cut, param="input") for source in body.input), "input")
    normalize = ability.normalize if body.normalize is None else body.normalize
    return Embedded(
        prompts=prompts,
        pooling=PoolingConfig(kind=ability.kind),
        vector=lambda event: vectors.embedding(_read(event), dimensions=dimensions, normalize=normalize),
    )


def embeddings(raw: bytes, served: ModelProfile) -> Work:
    """Raises Refused."""
    body = validation.validated(raw, EmbeddingBody, HARMLESS)
    asked = embedded(body, served)

    def finish(events: Sequence[EngineOutput], _created: int) -> bytes:
        made = []
        for index, event in enumerate(events):
            vector = asked.vector(event)
            written = vectors.as_base64(vector) if body.encoding_format == "base64" else vector.tolist()
            made.append(msgspec.Raw(msgspec.json.encode(EmbeddingItem(index=index, embedding=written))))
        # One by one, so that other threads get their turn in between; what is written is an Embeddings.
        return msgspec.json.encode(
            {"object": "list", "data": made, "model": body.model, "usage": _usage(asked.prompts)}
        )

    return work("embd-", asked, finish)


def work(prefix: str, asked: Embedded, finish: Callable[[Sequence[EngineOutput], int], bytes]) -> Work:
    """The work of embeddings. prefix: how its id begins."""
    return _work(_new_id(prefix), asked.prompts, asked.pooling, finish)


def reranking(raw: bytes, served: ModelProfile) -> Work:
    """Raises Refused."""
    body = validation.validated(raw, RerankBody, HARMLESS)
    queries = [body.query]
    prompts, score, pooling = _scored(
        body, queries, body.documents, served, ("query", "documents"), body.max_tokens_per_doc
    )
    answer_id = _new_id("rerank-")

    def finish(events: Sequence[EngineOutput], _created: int) -> bytes:
        found = score(events)
        best = sorted(range(len(found)), key=lambda index: (-found[index], index))[: body.top_n or None]
        results = [
            Ranked(
                index=index,
                relevance_score=found[index],
                document=RankedDocument(body.documents[index]) if body.return_documents else msgspec.UNSET,
            )
            for index in best
        ]
        name = body.model or served.names[0]
        return msgspec.json.encode(Ranking(id=answer_id, model=name, results=results, usage=_usage(prompts)))

    return _work(answer_id, prompts, pooling, finish)


def scores(raw: bytes, served: ModelProfile) -> Work:
    """Raises Refused."""
    body = validation.validated(raw, ScoreBody, HARMLESS)
    prompts, score, pooling = _scored(body, body.text_1, body.text_2, served, ("text_1", "text_2"), None)
    answer_id = _new_id("score-")

    def finish(events: Sequence[EngineOutput], created: int) -> bytes:
        usage = _usage(prompts)
        document = Scores(
            id=answer_id,
            created=created,
            model=body.model or served.names[0],
            data=[Score(index=index, score=found) for index, found in enumerate(score(events))],
            usage=ScoreUsage(usage.prompt_tokens, usage.total_tokens),
        )
        return msgspec.json.encode(document)

    return _work(answer_id, prompts, pooling, finish)


_Prompts = list[tuple[int, ...]]
_Score = Callable[[Sequence[EngineOutput]], list[float]]


def _scored(
    body: RerankBody | ScoreBody,
    firsts: Sequence[str],
    seconds: Sequence[str],
    served: ModelProfile,
    params: tuple[str, str],
    second_keep: int | None,
) -> tuple[_Prompts, _Score, PoolingConfig]:
    """Prompts for pairs of texts (one first text goes with each second), and the score of each pair from the events."""
    if body.model is not None:
        check_model(body.model, served)
    ability = served.capabilities.scoring
    if isinstance(ability, str):
        raise _cannot(f"This model gives no scores. {ability}")
    if body.instruction is not None and ability.kind != "judgement":
        message = "`instruction` has no effect on this model, which is not asked for a judgement."
        raise Refused(openai_errors.invalid(message, param="instruction", code="unsupported_parameter"))
    cut = Cut(keep=body.truncate_prompt_tokens, special=body.add_special_tokens, second_keep=second_keep)
    pairs = list(zip(firsts if len(firsts) == len(seconds) else list(firsts) * len(seconds), seconds, strict=True))
    if ability.kind == "similarity":
        return _similarities(ability, firsts, seconds, served, cut, params)
    if ability.kind == "judgement":
        said, param = body.instruction, params[1]
        made = (inputs.judgement(first, second, said, served, cut, param=param) for first, second in pairs)
    else:
        made = (inputs.pair(first, second, served, cut, param=params[1]) for first, second in pairs)
    prompts = _bounded(made, params[1])
    return prompts, lambda events: [_likelihood(ability, event) for event in events], ability.pooling


def _likelihood(ability: ScoringCapability, event: EngineOutput) -> float:
    """0..1: of the one label, or of yes over no."""
    logits = _read(event)
    return vectors.sigmoid(float(logits[0]) if ability.kind == "label" else float(logits[1] - logits[0]))


def _similarities(
    ability: ScoringCapability,
    firsts: Sequence[str],
    seconds: Sequence[str],
    served: ModelProfile,
    cut: Cut,
    params: tuple[str, str],
) -> tuple[_Prompts, _Score, PoolingConfig]:
    """Every text is embedded once."""
    second_cut = cut if cut.second_keep is None else Cut(keep=cut.second_keep, special=cut.special)
    texts = [(text, cut, params[0]) for text in firsts] + [(text, second_cut, params[1]) for text in seconds]
    prompts = _bounded((inputs.single(text, served, how, param=param) for text, how, param in texts), params[1])

    def score(events: Sequence[EngineOutput]) -> list[float]:
        found = [_read(event) for event in events]
        ones, others = found[: len(firsts)], found[len(firsts) :]
        return [vectors.similarity(ones[index % len(ones)], other) for index, other in enumerate(others)]

    return prompts, score, ability.pooling


def _dimensions(asked: int | None, ability: EmbeddingCapability) -> int | None:
    if asked is None or asked == ability.size:
        return None
    if not ability.shortens:
        message = (
            f"The model was not made for embeddings of other than {ability.size} numbers; "
            "start it with --matryoshka if it was."
        )
        raise Refused(openai_errors.invalid(message, param="dimensions", code="unsupported_parameter"))
    if asked > ability.size or (ability.sizes and asked not in ability.sizes):
        known = f"one of {', '.join(map(str, ability.sizes))}" if ability.sizes else f"at most {ability.size}"
        message = f"dimensions {asked} is not possible; expected {known}."
        raise Refused(openai_errors.invalid(message, param="dimensions", code="invalid_value"))
    return asked


def _bounded(prompts: Iterable[tuple[int, ...]], param: str) -> _Prompts:
    """All prompts of a request, made one by one: a client decides neither our memory nor how long a thread works."""
    made: _Prompts = []
    total = 0
    for prompt in prompts:
        total += len(prompt)
        if total > MAX_TOTAL_TOKENS:
            message = f"The texts have more than {MAX_TOTAL_TOKENS} tokens together; send fewer of them at a time."
            raise Refused(openai_errors.invalid(message, param=param, code="invalid_value"))
        made.append(prompt)
    return made


def _work(
    answer_id: str, prompts: _Prompts, pooling: PoolingConfig, finish: Callable[[Sequence[EngineOutput], int], bytes]
) -> Work:
    sampling = SamplingConfig(max_tokens=1)
    requests = tuple(
        EngineRequest(request_id=f"{answer_id}-{number}", prompt=prompt, sampling=sampling, pooling=pooling)
        for number, prompt in enumerate(prompts)
    )
    return Work(answer_id=answer_id, requests=requests, finish=finish)


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _usage(prompts: _Prompts) -> Usage:
    count = sum(map(len, prompts))
    return Usage(count, count)


def _read(event: EngineOutput) -> vectors.Vector:
    """The vector of an event. Raises Failed for one that is none, as 16 bits can overflow."""
    vector = vectors.read(event.pooled)
    if not vectors.is_finite(vector):
        raise GenerationFailed(openai_errors.internal("The model's numbers overflowed; serve it with --dtype float32."))
    return vector


def _cannot(message: str) -> Refused:
    return Refused(openai_errors.invalid(message, param="model", code="unsupported_model"))
